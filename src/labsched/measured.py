"""A device as a table of measured times (:class:`labsched.pace.DeviceTable`), made from a recording.

With steps decided ahead, a server notices the end of a step only when it has launched the next one. Launching a step
with prompts kernel by kernel takes longer than a step of decoding, and so the time of the one stands beside the other.
What is right is their sum. So the times of decoding are those of steps with no prompt in them, before or after them;
and a step with prompts is given what such a group took, less what its steps of decoding take by that table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mean, median

from labsched.contexts import Contexts
from labsched.errors import LabError
from labsched.lines import RECORD
from labsched.pace import DeviceTable, Knots, StepWork
from labsched.recording import StepRow

LEAST = 3  # steps of a size, whose median counts
FINE = 2  # sizes between one power of two and the next that are one knot each


@dataclass(frozen=True)
class Measured:
    """A table, and how well it says what it was made of.

    Attributes:
        said_s, took_s: seconds of all recorded steps by the table, and by the engine's own clock.
        steps: recorded.
    """

    table: DeviceTable
    said_s: float
    took_s: float
    steps: int


@dataclass(frozen=True)
class _Step:
    work: list[StepWork]
    seconds: float
    prompts: bool
    follows: bool  # requests were there when the step before it was over

    @property
    def tokens(self) -> int:
        return sum(work.tokens for work in self.work)

    @property
    def context(self) -> int:
        return sum(work.context for work in self.work)


def measure_device(rows: Sequence[StepRow]) -> Measured:
    """The device on which these steps were recorded.

    Raises:
        LabError: the recording has too few steps of decoding, or none with prompts, or lacks the engine's times.
    """
    contexts = Contexts()
    steps = []
    for row in rows:
        if row.engine_s is None:
            raise LabError(
                "this recording lacks the engine's own times",
                "no engine_us is in its steps: the recorder for a vLLM of your own sees the scheduler, not the engine",
                RECORD,
                code="device-unmeasured",
            )
        work = list(map(StepWork, row.tokens, contexts.each(row)))
        steps.append(_Step(work, row.engine_s, prompts="p" in row.phase, follows=row.busy))
    calm, groups = [], []
    places = groupby(range(len(steps)), lambda place: _near_prompts(steps, place))
    for near_prompts, group in places:
        alike = [steps[place] for place in group]
        if near_prompts:
            groups.append(alike)
        else:
            calm += alike
    token_s = _context(calm)
    decode = _knots((step.tokens, max(0.0, step.seconds - token_s * step.context)) for step in calm)
    if not decode:
        raise LabError(
            "no step of decoding can be timed",
            f"fewer than {LEAST} of any size have no prompts near",
            RECORD,
            code="device-unmeasured",
        )
    table = DeviceTable(decode, ((1, 0.0),), token_s)
    prompt = _knots(_prompts(table, groups), least=1)
    if not prompt:
        raise LabError(
            "no step with prompts was recorded",
            f"{len(steps):,} steps of decoding were",
            RECORD,
            code="device-unmeasured",
        )
    table = DeviceTable.of(table._replace(prompt=prompt).text)  # with the numbers as its text rounds them
    by_table = sum(table.seconds(step.work) for step in steps if step.work)
    return Measured(table, by_table, sum(step.seconds for step in steps), len(steps))


def _near_prompts(steps: Sequence[_Step], place: int) -> bool:
    """Whether there are prompts in the step at this place, or in one that it follows or that follows it."""
    step = steps[place]
    before = step.follows and place > 0 and steps[place - 1].prompts
    after = place + 1 < len(steps) and steps[place + 1].follows and steps[place + 1].prompts
    return step.prompts or before or after


def _context(calm: Sequence[_Step]) -> float:
    """Seconds for a token of context: the slope within steps of one batch size (least squares)."""
    sizes = defaultdict(list)
    for step in calm:
        sizes[step.tokens].append(step)
    covariance = variance = 0.0
    for alike in sizes.values():
        longest = 2 * median(step.seconds for step in alike)
        steady = [step for step in alike if step.seconds < longest]  # one that was held up says nothing about context
        context, seconds = mean(step.context for step in steady), mean(step.seconds for step in steady)
        covariance += sum((step.context - context) * (step.seconds - seconds) for step in steady)
        variance += sum((step.context - context) ** 2 for step in steady)
    return max(0.0, covariance / variance) if variance else 0.0


def _prompts(table: DeviceTable, groups: Sequence[Sequence[_Step]]) -> Iterator[tuple[float, float]]:
    """(tokens, seconds without context) of the steps with prompts: where a group has several, of their mean."""
    for group in groups:
        prompts = [step for step in group if step.prompts]
        others = sum(table.seconds(step.work) for step in group if not step.prompts)
        rest = sum(step.seconds for step in group) - others - table.token_s * sum(step.context for step in prompts)
        yield mean(step.tokens for step in prompts), max(0.0, rest / len(prompts))


def _knots(samples: Iterable[tuple[float, float]], least: int = LEAST) -> Knots:
    """The medians of the sizes that are near to each other, where there are ``least`` of them."""
    near = defaultdict(list)
    for size, seconds in samples:
        near[round(FINE * math.log2(size))].append((size, seconds))
    knots = []
    for _, same in sorted(near.items()):
        if len(same) >= least:
            size = float(round(median(size for size, _ in same)))
            knots.append((size, median(seconds for _, seconds in same)))
    return tuple(knots)
