"""How long a step takes: a sum of eight costs, fitted on the steps of a recording, and corrected by size and shape.

Errors are relative: a step of decoding counts as much as one with a long prompt. On processors a batch of two may cost
much more than one of one, and one of eight hardly more than that; a step of 65 tokens may take a fifth longer
than one of 64, and one of 67 a quarter longer than one of 68. No sum of costs says so. So the sum is corrected by what
the recorded steps with as many tokens took, and by what those of the same batch shape did, the more the more there are.

A step that computes only a part of a prompt makes no token, and skips the model's last layer, which is as large as the
vocabulary. Where no such step was recorded, it is not known what that saves, and nothing is assumed.

A number of tokens that a server computes for the first time takes longer, most likely because oneDNN makes a kernel for
each size of a matrix and keeps it. Where chunked prefill fills each step to the same number, this cost is paid once. A
step of decoding takes longer right after one with prompts: they need the caches in which weights were. So does any step
after a pause.

A step of any size gets a time. What is not known of the costs widens its interval, the more the further it lies
from the recorded steps: a recording in which one request at a time decoded does not say what eight cost.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from labsched.contexts import Contexts
from labsched.errors import LabError
from labsched.lines import RECORD
from labsched.pace import Pace, StepWork
from labsched.recording import StepRow

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TERMS = (
    "a step",
    "a decoding request",
    "a prompt token",
    "a token of context",
    "a step that makes tokens",
    "a number of tokens met for the first time",
    "a step of decoding after one with prompts",
    "a step after a pause",
)
ROUND = 64  # tokens of context within which two batches have the same shape
PAUSE_S = 0.005  # with nothing to compute: clients that send when an answer is there need less
LEAST = 30  # recorded steps that say what a step costs
DEVIATIONS = 2.0  # standard deviations of the costs on either side of the interval
HELD_UP = 5  # times the model's prediction: longer steps are reported
PROMPT_TOKEN = TERMS.index("a prompt token")
Shape = tuple[int, int, bool]


class StepCounts(NamedTuple):
    """How often each of TERMS occurs in a step."""

    step: int
    decoding: int
    prompt: int
    context: int
    makes_tokens: bool
    new_size: bool
    after_prompts: bool
    after_pause: bool


class StepFeatures:
    """Counts what a step's time depends on. Call it for every step of one server, in order."""

    def __init__(self) -> None:
        self._contexts = Contexts()
        self._met: set[int] = set()  # numbers of tokens
        self._prompts = False  # in the step before
        self._before: StepRow | None = None  # a replay sets when it is over after it has asked for its time

    def of(self, row: StepRow) -> StepCounts:
        prompt = sum(count for letter, count in zip(row.phase, row.tokens, strict=True) if letter == "p")
        computed = sum(row.tokens)
        before = self._before
        counts = StepCounts(
            step=1,
            decoding=row.phase.count("d"),
            prompt=prompt,
            context=self._contexts.of(row),
            makes_tokens=any(row.made),
            new_size=computed not in self._met,
            after_prompts=self._prompts and not prompt,
            after_pause=before is not None and row.began - before.over > PAUSE_S,
        )
        self._met.add(computed)
        self._prompts = prompt > 0
        self._before = row
        return counts


class LargestStep(NamedTuple):
    """The largest batch and the most prompt tokens of a recording's steps."""

    batch: int
    prompt: int


class Extrapolated(NamedTuple):
    """The steps of a replay that are larger than every recorded one.

    ``decoding`` and ``prompt`` are the most decoding requests and the most prompt tokens of such a step; 0: none had
    more than was recorded.
    """

    steps: int = 0
    decoding: int = 0
    prompt: int = 0

    def __or__(self, other: object) -> Extrapolated:
        """Both together: the sum of the steps, and the larger sizes."""
        if not isinstance(other, Extrapolated):
            return NotImplemented
        return Extrapolated(
            self.steps + other.steps, max(self.decoding, other.decoding), max(self.prompt, other.prompt)
        )


@dataclass(frozen=True)
class StepTime:
    """A fitted model of a step's time.

    Attributes:
        costs: seconds of each of TERMS.
        size_ratios: by size (:func:`prefill_tokens`), how many times the sum of costs such steps take.
        shape_ratios: by batch shape (:func:`shape_of`), how many times that.
        gap: seconds from the end of a step to the beginning of the next while requests are there (mean).
        noise: median relative difference of steps with the same batch shape from their shape's median.
        noise_steps: the steps behind ``noise``.
        error: median relative error of the model on the recorded steps.
        slowest, fastest: the time of the recording's parts as a multiple of the model's prediction.
        steps: recorded.
        doubt: the covariance of the costs (seconds squared), [8, 8].
        held_up_steps: the steps that took more than HELD_UP times the prediction.
        held_up_s: by how many seconds they did, in all.
    """

    costs: tuple[float, ...]
    size_ratios: Mapping[int, float]
    shape_ratios: Mapping[Shape, float]
    gap: float
    noise: float
    noise_steps: int
    error: float
    fastest: float
    slowest: float
    largest: LargestStep
    steps: int
    doubt: npt.NDArray[np.float64]
    held_up_steps: int
    held_up_s: float

    def seconds(self, counts: StepCounts, speed: float = 1.0, deviations: float = 0.0) -> float:
        """From the beginning of a step to the beginning of the next one; never less than a tenth of its costs.

        Args:
            counts: of the step, which may be larger than any that was recorded.
            speed: how many times as long every step takes.
            deviations: how far the costs are from the likeliest, in standard deviations of what is known of them.
        """
        likeliest = self._cost(counts)
        likeliest *= self.size_ratios.get(prefill_tokens(counts), 1.0)
        likeliest *= self.shape_ratios.get(shape_of(counts), 1.0)
        off = deviations * self.deviation(counts) if deviations else 0.0
        return speed * (max(likeliest + off, likeliest / 10) + self.gap)

    def _cost(self, counts: StepCounts) -> float:
        return sum(cost * count for cost, count in zip(self.costs, counts, strict=True))

    def prompt_token_share(self, counts: StepCounts) -> float:
        """The share of each prompt token in the cost of a step."""
        return self.costs[PROMPT_TOKEN] / (self._cost(counts) or 1.0)

    def excess(self, counts: StepCounts, seconds: float) -> float:
        """By how many seconds such a step was held up, which took ``seconds``; 0.0: it was not."""
        usual = self.seconds(counts) - self.gap
        return seconds - usual if seconds > HELD_UP * usual else 0.0

    def deviation(self, counts: StepCounts) -> float:
        """The standard deviation (seconds) of a step's likeliest time, from what is known of the costs."""
        import numpy as np

        vector = np.asarray(counts, dtype=np.float64)
        return math.sqrt(max(0.0, float(vector @ self.doubt @ vector)))

    def extrapolated(self, rows: Sequence[StepRow]) -> Extrapolated:
        """The steps that have more decoding requests or prompt tokens than any recorded one."""
        larger, features = Extrapolated(), StepFeatures()
        for row in rows:
            counts = features.of(row)
            decoding = counts.decoding if counts.decoding > self.largest.batch else 0
            prompt = counts.prompt if counts.prompt > self.largest.prompt else 0
            if decoding or prompt:
                larger |= Extrapolated(1, decoding, prompt)
        return larger

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": dict(zip(TERMS, self.costs, strict=True)),
            "gap_s": self.gap,
            "noise_floor": self.noise,
            "same_shape_steps": self.noise_steps,
            "median_error": self.error,
            "steps": self.steps,
            "parts": [self.fastest, self.slowest],
            "held_up_steps": self.held_up_steps,
            "held_up_s": self.held_up_s,
        }


class Speeds:
    """How fast the recorded machine was at each moment: the seconds of the model that it got done by then.

    A machine that other processes hold up, or that collects garbage, stands still whatever is in the batch. So a step
    of a replay, at the same moment, gets as little done as the recorded one did. Outside of recorded steps it is as
    fast as the model.

    Args:
        model: what was fitted on ``rows``.
        rows: every recorded step of one server, in order.
        held_up: count only the steps in which the machine was held up, and take the others for as fast as the model.
    """

    def __init__(self, model: StepTime, rows: Sequence[StepRow], held_up: bool = False) -> None:
        self._at, self._done = [0.0], [0.0]  # a line of points: seconds of the recording, and of the model
        features = StepFeatures()
        for row, after in zip_longest(rows, rows[1:]):
            over = row.over + model.gap
            if after:
                over = after.began if after.busy else min(over, after.began)
            idle = max(0.0, row.began - self._at[-1])
            self._done.append(self._done[-1] + idle)
            self._at.append(self._at[-1] + idle)
            counts = features.of(row)
            if held_up and not model.excess(counts, row.over - row.began):
                done = over - self._at[-1]  # as fast as the model
            else:
                done = model.seconds(counts)
            self._done.append(self._done[-1] + done)
            self._at.append(max(over, self._at[-1]))

    def seconds(self, began: float, work: float) -> float:
        """How long from ``began``, in seconds of the recording, until ``work`` seconds of the model are done."""
        done = _on(self._at, self._done, began)
        return _on(self._done, self._at, done + work) - began


def _on(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """The y of the line through these points; before the first and after the last one it rises by 1."""
    place = bisect_right(xs, x)
    if not 0 < place < len(xs):
        end = min(place, len(xs) - 1)
        return ys[end] + x - xs[end]
    before = place - 1
    return ys[before] + (ys[place] - ys[before]) * (x - xs[before]) / (xs[place] - xs[before])


@dataclass
class Timed:
    """The model as a replay asks it, step by step.

    Attributes:
        speeds: of the recorded machine, for a replay of the recorded times; None: always as fast as the model.
    """

    model: StepTime
    speed: float = 1.0
    deviations: float = 0.0
    speeds: Speeds | None = None
    features: StepFeatures = field(default_factory=StepFeatures)

    def __call__(self, row: StepRow) -> float:
        seconds = self.model.seconds(self.features.of(row), self.speed, self.deviations)
        return self.speeds.seconds(row.began, seconds) if self.speeds else seconds


@dataclass
class Paced:
    """The time of a step where the server takes it from the model of a device (``pace``), as a replay asks it."""

    pace: Pace
    gap: float = 0.0  # seconds to the next step
    contexts: Contexts = field(default_factory=Contexts)

    def __call__(self, row: StepRow) -> float:
        work = map(StepWork, row.tokens, self.contexts.each(row))
        return self.pace.seconds(work) * self.pace.slower + self.gap


def prefill_tokens(counts: StepCounts) -> int:
    """The tokens of a step with prompts; 0 for one that only decodes."""
    return counts.decoding + counts.prompt if counts.prompt else 0


def shape_of(counts: StepCounts) -> Shape:
    """The batch shape of a step: its decoding requests, its prompt tokens to the nearest half power of two, and
    whether it makes tokens.
    """
    return counts.decoding, round(2 * math.log2(1 + counts.prompt)), counts.makes_tokens


def require_steps(steps: int, least: int = LEAST) -> None:
    """Raises LabError: so many recorded steps do not say what a step costs."""
    if steps < least:
        raise LabError(
            f"{steps} recorded steps are too few for a model of their time",
            f"it takes at least {least}",
            RECORD,
            code="steps-too-few",
        )
