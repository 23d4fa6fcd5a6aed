"""The text models of a stack, as the door offers them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from labdoor.errors import ApiError
from labdoor.requests import CommonRequest
from labdoor.templates import PLAIN, PLAIN_STOP, ChatTemplate
from labkit.clients import stop
from labkit.clients.message import Tensor
from labkit.clients.text_model import LOGPROBS, STRUCTURED, TextModel
from labkit.errors import LabError

SHORT, PIECE = 2**11, 2**16  # characters of a text that are counted at once: in the loop; in a thread
COUNTING = ThreadPoolExecutor(2, "count")
#: With a cut that keeps everything, each engine samples: TensorRT-LLM answers greedily at temperature 1 without one.
ALL_OF_IT = float(np.nextafter(np.float32(1), np.float32(0)))
#: Values that ask for nothing.
NEUTRAL: Mapping[str, Sequence[float]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
}
SAMPLES = ("temperature", "top_p", "top_k")  # each asks for a draw


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokenizer and chat template; without a folder tokens are not counted.

    Attributes:
        end_id: the token that ends a text.
        context: tokens that the model sees.
    """

    tokenizer: Tokenizer | None = None
    template: ChatTemplate = field(default_factory=lambda: ChatTemplate(PLAIN, {}, (PLAIN_STOP,)))
    end_id: int | None = None
    context: int = 0

    @classmethod
    def of(cls, folder: str) -> Vocabulary:
        """Raises LabError: there is a folder, and it cannot be read."""
        path = Path(folder)
        if not folder or not (path / "tokenizer.json").is_file():
            return cls()
        try:
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
            tokenizer.no_truncation()
            config = json.loads((path / "config.json").read_text()) if (path / "config.json").is_file() else {}
            end_id = config.get("eos_token_id")
            context = config.get("max_position_embeddings") or config.get("n_positions") or 0
        except Exception as error:  # the tokenizers library raises no type of its own
            raise LabError(
                f"the tokenizer in {folder} cannot be read",
                str(error),
                "labctl weights list",
                code="tokenizer-unreadable",
            ) from None
        return cls(tokenizer, ChatTemplate.of(path), end_id if isinstance(end_id, int) else None, context)

    async def count(self, text: str, special: bool = True) -> int:
        """How many tokens a text has, but no more than it takes to exceed the context; 0 without a tokenizer.

        A text of more than one piece is counted piece by piece: it may seem to have a token more for each.
        """
        if len(text) <= SHORT:
            return self._count(text, special)
        return await asyncio.get_running_loop().run_in_executor(COUNTING, self._count, text, special)

    def _count(self, text: str, special: bool) -> int:
        if not self.tokenizer:
            return 0
        tokens = 0
        for start in range(0, len(text), PIECE):
            # The one method of the tokenizer that lets other threads run, and the one that keeps the least.
            (piece,) = self.tokenizer.encode_batch_fast(
                [text[start : start + PIECE]], add_special_tokens=special and not start
            )
            tokens += len(piece)
            if tokens > (self.context or math.inf):
                break
        return tokens


@dataclass(frozen=True)
class Model:
    """A text model.

    Attributes:
        stopper: the model that takes "stop" to end a request; "" if Triton itself passes cancellations on.
    """

    text: TextModel
    words: Vocabulary
    stopper: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        return self.text.name

    def wire(self, prompt: str, tokens: int, asked: CommonRequest, choice: int) -> tuple[list[Tensor], dict[str, Any]]:
        """The tensors and parameters of one answer; ``choice`` is its number among those to the same prompt.

        Raises:
            Refusal: the model cannot do what is asked; the field is named.
        """
        if asked.rivals is not None and not self.text.logprobs:
            why = f"logprobs: model {self.name} gives no log probabilities; models that stream tokens do"
            raise ApiError(400, why, "logprobs", "unsupported_parameter")
        if asked.answer_schema is not None and not self.text.structured:
            why = f"response_format: model {self.name} cannot mask tokens; vLLM can"
            raise ApiError(400, why, "response_format", "unsupported_parameter")
        tensors, parameters = self.text.wire(prompt, tokens, asked.ignore_eos, self.sampling(asked, choice), Tensor)
        end = self.text.end
        if end and not asked.ignore_eos and self.words.end_id is not None:
            tensors.append(end.filled(self.words.end_id, Tensor))
        if asked.rivals is not None:
            parameters[LOGPROBS] = asked.rivals
            if self.text.return_logprobs:
                tensors.append(self.text.return_logprobs.filled(True, Tensor))
        if asked.answer_schema is not None:
            parameters[STRUCTURED] = json.dumps({"json": asked.answer_schema})
        return tensors, parameters

    def sampling(self, asked: CommonRequest, choice: int = 0) -> Mapping[str, Any]:
        """A request's sampling parameters under the names of ``TextModel``. Raises Refusal.

        A neutral value is left out. Without a word of sampling the model's own choice holds, which is greedy.
        Greedy are a temperature of 0, a top_k of 1 and a top_p of 0; anything else samples, with a seed of its own
        where the request has none. On the wires a 0 may mean "off", so the API's is never sent as such.
        """
        numbers: dict[str, float | None] = {
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "repetition_penalty": asked.repetition_penalty,
        }
        present = {name: value for name, value in numbers.items() if value is not None}
        # As a tensor has it: what is next to 0, or next to a neutral value, is that value there.
        rounded = {name: float(np.float32(value)) for name, value in present.items()}
        greedy = rounded.get("temperature") == 0 or rounded.get("top_p") == 0 or rounded.get("top_k") == 1
        given = {name: value for name, value in present.items() if rounded[name] not in NEUTRAL.get(name, ())}
        if asked.seed is not None and given.keys().isdisjoint(SAMPLES):
            given["temperature"] = 1.0  # the API's own: a seed asks for a draw
        samples = not greedy and not given.keys().isdisjoint(SAMPLES)
        if greedy:
            given = {name: value for name, value in given.items() if name not in SAMPLES} | {"temperature": 0.0}
        elif samples:
            if given.keys().isdisjoint({"top_p", "top_k"}):
                given["top_p"] = ALL_OF_IT
            seed = secrets.randbits(31) if asked.seed is None else asked.seed + choice
            given["seed"] = seed % 2**63
        heeded = set(self.text.choices)
        if greedy:
            heeded.add("temperature")
        if asked.seed is None:
            heeded.add("seed")
        if unable := next((name for name in given if name not in heeded), ""):
            able = ", ".join(self.text.choices) or "nothing of the kind"
            why = f"{unable}: model {self.name} cannot do this; it heeds: {able}"
            raise ApiError(400, why, unable, "unsupported_parameter")
        return given

    def room(self, prompt_tokens: int, most: int) -> int:
        """How long a chat's answer may be where it was not said: ``most`` tokens, or what the context leaves."""
        left = self.words.context - prompt_tokens if self.words.context else math.inf
        return int(max(1, min(most, left)))


def find_models(endpoint: str, names: Sequence[str], tokenizer_dir: str) -> dict[str, Model]:
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
        name: Model(text, words if tokenizer_dir else Vocabulary.of(text.tokenizer_dir), stoppers.get(name, ""))
        for name, text in found.items()
    }
