"""The text models of a stack, and how each of them is asked."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labdoor.errors import ApiError
from labdoor.requests import TextRequest
from labdoor.vocabulary import Vocabulary
from labkit.client import stop
from labkit.client.message import Tensor
from labkit.client.text_model import LOGPROBS, SAMPLING, STRUCTURED, TextModel
from labkit.errors import LabError

#: With a cut that keeps everything, each engine samples: TensorRT-LLM answers greedily at temperature 1 without one.
ALL_OF_IT = float(np.nextafter(np.float32(1), np.float32(0)))
DRAWS = {"temperature", "top_p", "top_k"}  # each asks for a draw


@dataclass(frozen=True)
class Model:
    """A text model.

    Attributes:
        stopper: the model that takes "stop" to end a request; None if Triton itself passes cancellations on.
    """

    text: TextModel
    words: Vocabulary
    stopper: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        return self.text.name

    def wire(self, prompt: str, tokens: int, asked: TextRequest, choice: int) -> tuple[list[Tensor], dict[str, Any]]:
        """The tensors and parameters of one answer; ``choice`` is its number among those to one request.

        Raises:
            ApiError: the model cannot do what is asked; the field is named.
        """
        if asked.rivals is not None and not self.text.logprobs:
            raise self._unable("logprobs", "gives no log probabilities; models that stream tokens do")
        if asked.answer_schema is not None and not self.text.structured:
            raise self._unable("response_format", "cannot mask tokens; vLLM can")
        sampling, end_id = self.sampling(asked, choice), self.words.end_id
        tensors, parameters = self.text.wire(prompt, tokens, asked.ignore_eos, sampling, Tensor, end_id)
        if asked.rivals is not None:
            parameters[LOGPROBS] = asked.rivals
            if self.text.return_logprobs:
                tensors.append(self.text.return_logprobs.filled(True, Tensor))
        if asked.answer_schema is not None:
            parameters[STRUCTURED] = json.dumps({"json": asked.answer_schema})
        return tensors, parameters

    def sampling(self, asked: TextRequest, choice: int = 0) -> Mapping[str, Any]:
        """A request's sampling parameters under the names of ``TextModel``. Raises ApiError.

        Without a word of sampling the model's own choice holds, which is greedy. Greedy are a temperature of 0, a top_k
        of 1 and a top_p of 0; anything else samples, with a seed of its own where the request has none. On the wires a
        0 may mean "off", so the API's is never sent as such.
        """
        given = {name: value for name in SAMPLING if (value := getattr(asked, name)) is not None}
        seed = given.pop("seed", None)
        heeded = {*self.text.choices}
        # As a tensor has it: what is next to 0 is 0 there.
        greedy = asked.top_k == 1 or any(np.float32(given.get(name, 1)) == 0 for name in ("temperature", "top_p"))
        if greedy:
            given = {name: value for name, value in given.items() if name not in DRAWS} | {"temperature": 0.0}
            heeded.add("temperature")
        elif seed is not None or not given.keys().isdisjoint(DRAWS):
            if given.keys().isdisjoint(DRAWS):
                given["temperature"] = 1.0  # the API's own: a seed asks for a draw
            if given.keys().isdisjoint({"top_p", "top_k"}):
                given["top_p"] = ALL_OF_IT
            if seed is None:
                heeded.add("seed")
            given["seed"] = (secrets.randbits(31) if seed is None else seed + choice) % 2**63
        if unable := next((name for name in given if name not in heeded), None):
            able = ", ".join(self.text.choices) or "nothing of the kind"
            raise self._unable(unable, f"cannot do this; it heeds: {able}")
        return given

    def _unable(self, field: str, why: str) -> ApiError:
        return ApiError(400, f"{field}: model {self.name} {why}", field, "unsupported_parameter")


def find_models(endpoint: str, names: Sequence[str], tokenizer_dir: str | None) -> dict[str, Model]:
    """The text models among ``names`` of the server at ``endpoint`` (gRPC), by name.

    Raises:
        LabError: the server does not answer, or none of them continues texts.
    """
    found: dict[str, TextModel] = {}
    why: LabError | None = None
    for name in names:
        try:
            found[name] = TextModel.of(endpoint, name)
        except LabError as error:
            why = error
    if not found:
        raise why or LabError("there is no model to offer", code="models-none")
    stoppers: Mapping[str, str] = {}
    with contextlib.suppress(LabError):
        stoppers = stop.stoppable_steps(endpoint, names)
    words = Vocabulary.of(tokenizer_dir)
    return {
        name: Model(text, words if tokenizer_dir else Vocabulary.of(text.tokenizer_dir), stoppers.get(name))
        for name, text in found.items()
    }
