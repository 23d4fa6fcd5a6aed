"""Log probabilities: from a model's output to the two forms of OpenAI's API, in step with the text of an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAST = -9999.0  # for a token that is out of reach: JSON has no infinity


@dataclass(frozen=True)
class ScoredToken:
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


class Scores:
    """The tokens of one answer, held back as long as their text is (a stop string may begin there)."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[ScoredToken] = []
        self._length = 0  # of all texts, also those held back

    def add(self, text: str, output: str) -> None:
        """A response's text, and its log probabilities as vllm_backend writes them: chosen token first, then rivals."""
        start, self._length = self._length, self._length + len(text)
        for token in json.loads(output):
            every = [(one["rank"], one["decoded_token"], max(one["logprob"], LEAST)) for one in token.values()]
            best = sorted(one for one in every if one[0] <= self._count)
            self._held.append(ScoredToken(start, self._length, every[0][1:], [one[1:] for one in best]))

    def take(self, given: int, stopped: bool) -> list[ScoredToken]:
        """The tokens that go with the first ``given`` characters; ``stopped``: no others will follow."""
        ready = [one for one in self._held if (one.start < given if stopped else one.end <= given)]
        self._held = self._held[len(ready) :]
        return ready


def completion_form(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    return {
        "text_offset": [one.start for one in tokens],
        "token_logprobs": [one.own[1] for one in tokens],
        "tokens": [one.own[0] for one in tokens],
        "top_logprobs": [dict([*one.rivals, one.own]) for one in tokens],
    }


def chat_form(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    return {"content": [_spelled(one.own) | {"top_logprobs": [*map(_spelled, one.rivals)]} for one in tokens]}


def _spelled(token: tuple[str, float]) -> dict[str, Any]:
    return {"token": token[0], "logprob": token[1], "bytes": list(token[0].encode())}
