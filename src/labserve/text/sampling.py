"""Choosing the next token of each sequence, independently of whoever shares its batch."""

from collections.abc import Sequence
from typing import Any

import torch


class Sampler:
    """How one request's tokens are chosen.

    temperature 0 is greedy; top_k 0 and top_p 0 or 1 are off. Each sampler draws from a generator of its own,
    so that a seeded request gives the same tokens in any batch. The order is the usual one: temperature, then
    top-k, then top-p over what is left.
    """

    __slots__ = ("_generator", "temperature", "top_k", "top_p")

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, seed: int | None = None) -> None:
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self._generator = torch.Generator()  # on the CPU on every device: one seed, one answer
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    @property
    def seed(self) -> int:
        """The seed that was given, or drawn where none was."""
        return int(self._generator.initial_seed()) % 2**64

    def restart(self) -> None:
        """Draw the same tokens once more."""
        self._generator.manual_seed(self._generator.initial_seed())

    @classmethod
    def of(cls, params: dict[str, Any]) -> "Sampler":
        """From parsed parameters: any of these asks for sampling, at temperature 1 if none is given."""
        asked = {name: params[name] for name in ("temperature", "top_k", "top_p", "seed") if name in params}
        if asked:
            asked.setdefault("temperature", 1.0)
        return cls(**asked)

    def draw(self, logits: torch.Tensor) -> int:
        """A token id drawn from `logits` [vocab]."""
        scores = logits.float().cpu() / self.temperature
        nucleus = 0.0 < self.top_p < 1.0
        if not self.top_k and not nucleus:
            return int(torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=self._generator))
        # Only the candidates are sorted: with top-k, k of them instead of the whole vocabulary.
        scores, tokens = torch.topk(scores, min(self.top_k or len(scores), len(scores)))
        weights = torch.softmax(scores, dim=-1)
        if nucleus:
            # A token stays while those before it have not reached top_p; the best one always does.
            weights[weights.cumsum(dim=-1) - weights >= self.top_p] = 0.0
        return int(tokens[torch.multinomial(weights, 1, generator=self._generator)])


def choose(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int | Exception]:
    """The next token id of each row of `logits` [batch, vocab]; greedy rows share one maximum.

    A row of which nothing can be chosen (NaN, infinity) has an ArithmeticError in its place.
    """
    # NaN is greater than anything, in both libraries. On a processor numpy is ten times as fast as torch here.
    likeliest = torch.from_numpy(logits.numpy().argmax(-1)) if logits.device.type == "cpu" else logits.argmax(-1)
    best = logits.gather(-1, likeliest[:, None])[:, 0]
    tokens: list[int | Exception] = []
    for row, (sampler, finite, token) in enumerate(
        zip(samplers, best.isfinite().tolist(), likeliest.tolist(), strict=True)
    ):
        if not finite:
            tokens.append(ArithmeticError("the model's scores are not finite numbers"))
        else:
            tokens.append(sampler.draw(logits[row]) if sampler.temperature > 0.0 else token)
    return tokens
