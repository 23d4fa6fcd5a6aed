"""One choice of an answer: what Triton's responses bring, up to a stop string, with log probabilities in step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tritonclient.grpc import InferResult

from labdoor.errors import ApiError
from labdoor.models import Model
from labdoor.requests import RequestHeaders, TextRequest
from labdoor.triton import EMPTY_FINAL, Triton, first_text
from labkit.client.message import infer_request

Ends = Literal["stop", "length"]
GOES_ON = b"None"  # Python's None, as vLLM's backend writes it
LEAST = -9999.0  # for a token that is out of reach: JSON has no infinity


class ScoredToken(NamedTuple):
    """One token of an answer.

    Attributes:
        start: where its text begins, in characters of the answer; half a character has none yet.
        end: where its text ends.
        own: its spelling and its log probability.
        rivals: those of the likeliest tokens, itself among them if it is one, the best first.
    """

    start: int
    end: int
    own: tuple[str, float]
    rivals: Sequence[tuple[str, float]]


class Part(NamedTuple):
    """What is new: a text, the tokens whose log probabilities were asked for, and why the text ends if it does."""

    text: str
    tokens: Sequence[ScoredToken] = ()
    end: Ends | None = None


@dataclass
class Generation:
    """One request to Triton, and what came of it.

    Attributes:
        stops: the stop strings.
        choice: its number in the answer.
        text: all that has come, without a stop string.
        end: why it ended; None while it has not.
    """

    triton: Triton
    model: Model
    request: TextRequest
    headers: RequestHeaders
    prompt: str
    limit: int
    stops: Sequence[str]
    choice: int
    text: str = ""
    end: Ends | None = None

    def __post_init__(self) -> None:
        """Make the request. Raises ApiError: the model cannot do it."""
        headers = self.headers
        inputs, parameters = self.model.wire(self.prompt, self.limit, self.request, self.choice)
        if self.model.stopper or not self.model.text.by_parameter:
            named = {"tenant": headers.tenant, "request_priority": headers.priority}
            parameters |= {name: value for name, value in named.items() if value}
        id = headers.triton_id(self.choice)
        self._message: Any = infer_request(self.model.name, inputs, id=id, parameters=parameters)
        if headers.priority:
            self._message.parameters["priority"].uint64_param = headers.priority
        if self.model.text.decoupled:
            self._message.parameters[EMPTY_FINAL].bool_param = True
        if headers.timeout_ms:  # Triton's, for its queue
            self._message.parameters["timeout"].int64_param = headers.timeout_ms * 1000

    async def parts(self) -> AsyncGenerator[Part, None]:
        """The new text as it comes; texts may be empty. Closing it cancels the request. Raises ApiError."""
        if getattr(self.request, "echo", False):
            yield Part(self.prompt)
        scanner = Scanner(self.stops)
        scores = None if self.request.rivals is None else Scores(self.request.rivals)
        responses, told = 0, None
        async with contextlib.aclosing(self.triton.responses(self.model, self._message, self.headers)) as stream:
            async for response, last in stream:
                text = self._read(response)
                responses += text is not None
                if self.model.text.tells_end and (word := first_text(response, "finish_reason")) not in (None, GOES_ON):
                    told = word
                if scores and (output := InferResult(response).as_numpy(self.model.text.logprobs)) is not None:
                    scores.add(text or "", output.reshape(-1)[0].decode())
                new = scanner.add(text or "", last)
                self.text += new
                if last or scanner.found:
                    self.end = "stop" if scanner.found else await self._why(told, responses)
                yield Part(new, scores.take(len(self.text), scanner.found) if scores else (), self.end)
                if self.end:
                    return

    def _read(self, response: Any) -> str | None:
        """A response's text, without the prompt and without what ends each text."""
        model = self.model.text
        if (raw := first_text(response, model.output)) is None:
            return None
        text = raw.decode(errors="replace")
        if model.end_text and not model.decoupled:
            text = text.partition(model.end_text)[0]
        return text if model.answers_alone else text.removeprefix(self.prompt)

    async def _why(self, told: bytes | None, responses: int) -> Ends:
        """Why the text ended: in the model's own words, else by its length. A response has a token or more.

        Raises:
            ApiError: the model says that it was cut off.
        """
        if told in (b"length", b"stop"):
            return "length" if told == b"length" else "stop"
        if told:
            word = told.decode(errors="replace")
            raise ApiError(500, f"the model gave the request up: it ended with '{word}'", code="generation_cut_off")
        at_limit = self.model.text.decoupled and responses >= self.limit
        return "length" if at_limit or (await self._count() or 0) >= self.limit else "stop"

    async def tokens(self) -> int | None:
        """How many tokens it has: all that were asked for, or as many as the tokenizer finds; None without one.

        A text that is read again may have fewer tokens than were generated, never more than were asked for.
        """
        found = await self._count()
        return None if found is None else self.limit if self.end == "length" else min(found, self.limit)

    async def _count(self) -> int | None:
        return await self.model.words.count(self.text, special=False)


class Scanner:
    """Cut a text that grows at the first of its stop strings; no part of one is let through too early."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def add(self, text: str, last: bool = False) -> str:
        """The text that is certain now. ``found`` is set where a stop string ended it.

        Args:
            last: nothing follows, so nothing is held back.
        """
        if not self._stops:
            return text
        whole = self._held + text
        ends = [(place + len(stop), place) for stop in self._stops if (place := whole.find(stop)) >= 0]
        if ends:
            self.found = True
            return whole[: min(ends)[1]]  # the one that is complete first, however the text came in pieces
        keep = 0 if last else max(self._overlap(whole, stop) for stop in self._stops)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """How many characters at the end of ``text`` may begin ``stop``."""
        longest = min(len(stop) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class Scores:
    """The tokens of one answer, held back as long as their text is (a stop string may begin there)."""

    def __init__(self, rivals: int) -> None:
        self._rivals = rivals
        self._held: list[ScoredToken] = []
        self._length = 0  # of all texts, also those held back

    def add(self, text: str, output: str) -> None:
        """A response's text, and its log probabilities as vllm_backend writes them: chosen token first, then rivals."""
        start, self._length = self._length, self._length + len(text)
        for token in json.loads(output):
            ranked = [(one["rank"], (one["decoded_token"], max(one["logprob"], LEAST))) for one in token.values()]
            rivals = [score for rank, score in sorted(ranked) if rank <= self._rivals]
            self._held.append(ScoredToken(start, self._length, ranked[0][1], rivals))

    def take(self, given: int, stopped: bool) -> list[ScoredToken]:
        """The tokens that go with the first ``given`` characters; ``stopped``: no others will follow."""
        if stopped:
            ready = [token for token in self._held if token.start < given]
        else:
            ready = [token for token in self._held if token.end <= given]
        self._held = self._held[len(ready) :]
        return ready
