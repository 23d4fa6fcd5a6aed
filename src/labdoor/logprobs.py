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
            ranked = [
                (scored["rank"], (scored["decoded_token"], max(scored["logprob"], LEAST))) for scored in token.values()
            ]
            own = ranked[0][1]
            rivals = [score for rank, score in sorted(ranked) if rank <= self._count]
            self._held.append(ScoredToken(start, self._length, own, rivals))

    def take(self, given: int, stopped: bool) -> list[ScoredToken]:
        """The tokens that go with the first ``given`` characters; ``stopped``: no others will follow."""
        if stopped:
            ready = [token for token in self._held if token.start < given]
        else:
            ready = [token for token in self._held if token.end <= given]
        self._held = self._held[len(ready) :]
        return ready


def completion_form(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    return {
        "text_offset": [token.start for token in tokens],
        "token_logprobs": [token.own[1] for token in tokens],
        "tokens": [token.own[0] for token in tokens],
        "top_logprobs": [dict([*token.rivals, token.own]) for token in tokens],
    }


def chat_form(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    content = []
    for token in tokens:
        content.append({**_spelled(*token.own), "top_logprobs": [_spelled(*rival) for rival in token.rivals]})
    return {"content": content}


def _spelled(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
