"""The model of a step's time: flat in the step's tokens up to a bend, and then rising. There is no other here.

A step reads the whole model, whatever it computes. While it computes few tokens, that takes longer than their
arithmetic, and one more token is free. Beyond the bend the arithmetic takes longer, and each token costs its share: a
roofline (Williams et al., CACM 2009). A step with prompts has a floor of its own, because its kernels may have to be
launched one by one. Without a bend each token costs its share from the first one on, as on most processors.

The sets of numbers for it: what a recording shows (:mod:`labsched.replay.fitting`), what a GPU could do or did
(:mod:`labsched.pace`), and what an exercise states (:mod:`labsched.replay.counted_time`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import mul
from typing import NamedTuple

SEPARATOR = ","


class StepCounts(NamedTuple):
    """What a step computes, and what came before it.

    Attributes:
        decoding: requests that decode.
        prompt: tokens of prompts that it computes.
        context: tokens whose keys and values it reads or writes.
        makes_tokens: whether a request gets a token by it.
        new_size: whether this number of tokens is computed for the first time.
        after_prompts: whether it only decodes, and the step before it had prompts.
        after_pause: whether there was nothing to compute before it.
        pairs: tokens that its tokens see, summed up; only costs with a ``pair`` need it.
    """

    decoding: int = 0
    prompt: int = 0
    context: int = 0
    makes_tokens: bool = False
    new_size: bool = False
    after_prompts: bool = False
    after_pause: bool = False
    pairs: float = 0.0

    @classmethod
    def of(cls, phase: str, tokens: Sequence[int]) -> StepCounts:
        """Count what a step computes: a letter ("d" decodes) and the computed tokens of each request."""
        decoding = phase.count("d")
        if decoding == len(phase):
            return cls(decoding)
        return cls(decoding, sum(count for letter, count in zip(phase, tokens, strict=True) if letter == "p"))

    @property
    def tokens(self) -> int:
        """The tokens that it computes."""
        return self.decoding + self.prompt


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of a step, all in one unit of time (seconds, but where it is said), and its bend.

    Attributes:
        step: of any step: its floor.
        prompts: of a step with prompts, beside that.
        decoding: of a request that decodes; with a bend, beside what its token costs.
        token: of a prompt's token; with a bend, of each token of the step beyond it.
        context: of a token of context.
        makes_tokens, new_size, after_prompts, after_pause: of a step whose :class:`StepCounts` has that mark.
        bend: the tokens of a step that are free; None: there is no bend.
        pair: the arithmetic of a token that sees another one, as a multiple of a token's own.
    """

    step: float = 0.0
    prompts: float = 0.0
    decoding: float = 0.0
    token: float = 0.0
    context: float = 0.0
    makes_tokens: float = 0.0
    new_size: float = 0.0
    after_prompts: float = 0.0
    after_pause: float = 0.0
    bend: float | None = None
    pair: float = 0.0

    @classmethod
    def of(cls, text: str) -> StepCosts:
        """Read costs in seconds from a line such as "step:6.2,token:0.026,bend:235": milliseconds, and tokens.

        Raises:
            ValueError: the line has another form.
        """
        known = {field.name for field in fields(cls)}
        numbers: dict[str, float] = {}
        for part in text.split(SEPARATOR):
            name, _, number = part.partition(":")
            try:
                value = float(number)
            except ValueError:
                value = math.nan
            if name not in known or name in numbers or not 0 <= value < math.inf:
                raise ValueError(
                    f"'{part}' is not one of {', '.join(sorted(known))} with a number of at least 0: "
                    "a line is like step:6.2,token:0.026,bend:235"
                )
            numbers[name] = value if name in ("bend", "pair") else value / 1e3
        return cls(**numbers)

    @property
    def text(self) -> str:
        """The costs as :meth:`of` reads them, with four digits each."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        return SEPARATOR.join(
            f"{name}:{number if name in ('bend', 'pair') else 1e3 * number:.4g}"
            for name, number in numbers.items()
            if number
        )

    @property
    def costs(self) -> tuple[float, ...]:
        """The costs, in the order of :meth:`occurrences`."""
        return (
            self.step,
            self.prompts,
            self.decoding,
            self.token,
            self.context,
            self.makes_tokens,
            self.new_size,
            self.after_prompts,
            self.after_pause,
        )

    def occurrences(self, counts: StepCounts) -> tuple[float, ...]:
        """Return how often a step has each of the costs."""
        return (
            1.0,
            float(counts.prompt > 0),
            counts.decoding,
            self.costly_tokens(counts),
            counts.context,
            *map(float, counts[3:7]),
        )

    def costly_tokens(self, counts: StepCounts) -> float:
        """Return how many tokens of a step cost ``token``."""
        if self.bend is None:
            return counts.prompt + self.pair * counts.pairs
        return max(0.0, counts.tokens + self.pair * counts.pairs - self.bend)

    def seconds(self, counts: StepCounts) -> float:
        """Return the time of a step, in the unit of the costs."""
        seconds: float = sum(map(mul, self.costs, self.occurrences(counts)))
        return seconds
