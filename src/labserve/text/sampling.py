"""Choosing the next token of each sequence, independently of the others in its batch.

It uses numpy alone: a model that needs PyTorch for nothing else starts without it, in a third of the time. Scores may
be numpy's or PyTorch's.
"""

import math
import random
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np


class Sampler:
    """How one request's tokens are chosen.

    Greedy are temperature 0 and what leaves the best token alone, top_k 1 and top_p 0; off are top_k 0 and top_p 1.
    Each sampler draws from a generator of its own, so that a seeded request gives the same tokens in any batch. The
    order is the usual one: temperature, then top-k, then top-p over what is left.
    """

    __slots__ = ("_random", "seed", "temperature", "top_k", "top_p")

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int | None = None) -> None:
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.seed = secrets.randbits(64) if seed is None else seed % 2**64  # as given, or drawn where none was
        self._random = random.Random(self.seed)

    def restart(self) -> None:
        """Draw the same tokens once more."""
        self._random.seed(self.seed)

    def skip(self) -> None:
        """Its first token was drawn by another server's sampler of the same seed."""
        if self.temperature > 0.0:
            self._random.random()

    @classmethod
    def of(cls, params: dict[str, Any]) -> "Sampler":
        """From parsed parameters: any of these asks for sampling, at temperature 1 if none is given.

        A top_k of -1 is off, as in vLLM.
        """
        given = {name: params[name] for name in ("temperature", "top_k", "top_p", "seed") if name in params}
        if given:
            given.setdefault("temperature", 1.0)
            given["top_k"] = max(0, given.get("top_k", 0))
        return cls(**given)

    def draw(self, logits: Any) -> int:
        """A token id drawn from `logits` [vocab]; the largest logit must be finite."""
        scores = as_array(logits).astype(np.float64)
        with np.errstate(over="ignore"):  # at a temperature of almost nothing all others are out of reach
            scores = (scores - scores.max()) / self.temperature
        if self.top_k and self.top_k < len(scores):
            tokens = np.argpartition(scores, -self.top_k)[-self.top_k :]
        else:
            tokens = np.arange(len(scores))
        if nucleus := self.top_p < 1.0:
            tokens = tokens[np.argsort(-scores[tokens])]
        sums = np.exp(scores[tokens]).cumsum()
        if nucleus:
            # A token stays while those before it have not reached top_p; the best one always does.
            sums = sums[: 1 + int(np.searchsorted(sums, self.top_p * sums[-1]))]
        place = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        return int(tokens[min(place, len(sums) - 1)])


def choose(logits: Any, samplers: Sequence[Sampler]) -> list[int | Exception]:
    """The next token id of each row of `logits` [batch, vocab]; greedy rows share one maximum.

    A row without a valid choice (NaN, infinity) has an ArithmeticError in its place.
    """
    tokens: list[int | Exception] = []
    for row, (sampler, best, token) in enumerate(zip(samplers, *likeliest(logits), strict=True)):
        if not math.isfinite(best):
            tokens.append(ArithmeticError("the model's scores are not finite numbers"))
        elif sampler.temperature > 0.0:
            tokens.append(sampler.draw(logits[row]))
        else:
            tokens.append(token)
    return tokens


def likeliest(logits: Any) -> tuple[list[float], list[int]]:
    """The best score of each row of `logits` [batch, vocab], and its token. NaN is greater than anything."""
    if not isinstance(logits, np.ndarray) and logits.device.type != "cpu":  # only the winners leave the device
        best, tokens = logits.max(dim=-1)
    else:
        scores = as_array(logits)
        tokens = scores.argmax(-1)
        best = np.take_along_axis(scores, tokens[:, None], -1)[:, 0]
    return best.tolist(), tokens.tolist()


def as_array(logits: Any) -> np.ndarray[Any, Any]:
    """Scores of any shape in the processor's memory."""
    return logits if isinstance(logits, np.ndarray) else logits.float().cpu().numpy()
