"""The time of a recorded machine's steps: fitted costs with a bend, corrected by size and shape, and the doubt.

Errors are relative: a step of decoding counts as much as one with a long prompt. On processors a batch of two may cost
much more than one of one, and one of eight hardly more than that; a step of 65 tokens may take a fifth longer
than one of 64, and one of 67 a quarter longer than one of 68. No costs (:mod:`labsched.costs`) say so. So what they
come to is corrected by what the recorded steps with as many tokens took, and by what those of the same batch shape did,
the more the more there are.

A step that computes only a part of a prompt makes no token, and skips the model's last layer, which is as large as the
vocabulary. Where no such step was recorded, it is not known what that saves, and nothing is assumed.

A number of tokens that a server computes for the first time takes longer, most likely because oneDNN makes a kernel for
each size of a matrix and keeps it. Where chunked prefill fills each step to the same number, this cost is paid once. A
step of decoding takes longer right after one with prompts: they need the caches in which weights were. So does any step
after a pause.

A step of any size gets a time, and its interval knows three doubts. The costs: one request at a time that decoded does
not say what eight cost. The form: every bend that fits the recording about as well is an edge, and where none shows, a
step beyond the largest recorded one may take longer in proportion to its tokens, which no roofline exceeds. And the
test: sizes that were left out of the fit lay so far beyond the interval that the others gave.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from labsched.costs import StepCosts, StepCounts
from labsched.errors import LabError
from labsched.log.lines import RECORD
from labsched.pace import Pace
from labsched.step import Step

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

TERMS = (  # the costs of :class:`StepCosts`, in words; without a bend a token is one of a prompt
    "a step",
    "a step with prompts",
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
FAR = 1.5  # times as large or as small as the nearest recorded size: what a step of such a size takes is extrapolated
TOKEN = TERMS.index("a prompt token")
Shape = tuple[int, int, bool]


class Contexts:
    """How many tokens of each request are in the KV cache, followed from step to step."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def each(self, step: Step) -> list[int]:
        """Return for each request of the batch the tokens whose keys and values a step reads or writes."""
        held = self._tokens
        for name in step.evicted:
            held.pop(name, None)
        if step.joined:
            found = dict(zip(step.ids, step.found, strict=True))
            held.update((name, found[name]) for name in step.joined if name in found)
        contexts = [held.get(name, 0) + tokens for name, tokens in zip(step.ids, step.tokens, strict=True)]
        held.update(zip(step.ids, contexts, strict=True))
        for name in step.ended:
            held.pop(name, None)
        return contexts


class StepFeatures:
    """Counts what a step's time depends on. Call it for every step of one server, in order.

    ``contexts``: the tokens of each request of the last one that are in the KV cache.
    """

    def __init__(self) -> None:
        self._contexts = Contexts()
        self.contexts: list[int] = []
        self._met: set[int] = set()  # numbers of tokens
        self._prompts = False  # in the step before
        self._before: Step | None = None  # a replay sets when it is over after it has asked for its time

    def of(self, step: Step) -> StepCounts:
        computed, before = sum(step.tokens), self._before
        self.contexts = self._contexts.each(step)
        decoding, prompt, *_ = StepCounts.of(step.phase, step.tokens)
        counts = StepCounts(
            decoding,
            prompt,
            context=sum(self.contexts),
            makes_tokens=any(step.made),
            new_size=computed not in self._met,
            after_prompts=self._prompts and not prompt,
            after_pause=before is not None and step.began - before.over > PAUSE_S,
        )
        self._met.add(computed)
        self._prompts = prompt > 0
        self._before = step
        return counts


@dataclass(frozen=True)
class RecordedSizes:
    """The sizes of a recording's steps: the different numbers, the smallest first.

    ``decoding``: requests that decode; ``prompt``: tokens of prompts; ``tokens``: tokens.
    """

    decoding: Sequence[int]
    prompt: Sequence[int]
    tokens: Sequence[int]

    @classmethod
    def of(cls, counts: Sequence[StepCounts]) -> RecordedSizes:
        def numbers(every: Sequence[int]) -> list[int]:
            return sorted({*every} - {0})

        return cls(
            numbers([step.decoding for step in counts]),
            numbers([step.prompt for step in counts]),
            numbers([step.tokens for step in counts]),
        )


def nearest_size(sizes: Sequence[int], size: int) -> int:
    """Return the size nearest to ``size`` as a ratio; 0 if there is none. ``sizes`` go up."""
    place = bisect_left(sizes, size)
    return min(sizes[max(0, place - 1) : place + 1], key=lambda near: abs(math.log(near / size)), default=0)


def is_far(sizes: Sequence[int], size: int) -> bool:
    """Return whether a size is far from every recorded one; a step without any of it (0) is not."""
    if not size:
        return False
    near = nearest_size(sizes, size)
    return not near or max(near / size, size / near) > FAR


class LeftOut(NamedTuple):
    """How well sizes are known that were left out of the fit, one at a time.

    Attributes:
        sizes: that were left out.
        within: those whose mean time lay inside the interval that the others gave.
        error: the median relative error of the likeliest time.
        beyond: how far beyond the interval nine of ten of them lay at most, relatively.
    """

    sizes: int = 0
    within: int = 0
    error: float = 0.0
    beyond: float = 0.0


class Forms(NamedTuple):
    """Costs of several forms, and what is known of them. The first axis is the form.

    Attributes:
        costs: seconds, in the order of TERMS.
        bends: tokens; NaN: a form has none.
        doubt: the covariances of the costs (seconds squared).
    """

    costs: Array
    bends: Array
    doubt: Array

    def seconds(self, counts: StepCounts) -> tuple[Array, Array]:
        """Return what each form says of a step, and the standard deviation of that."""
        import numpy as np

        rows = np.tile(StepCosts().occurrences(counts), (len(self.bends), 1))
        with_bend = np.maximum(0.0, counts.tokens - self.bends)
        rows[:, TOKEN] = np.where(np.isnan(self.bends), counts.prompt, with_bend)
        variance = np.einsum("fi,fij,fj->f", rows, self.doubt, rows)
        return (self.costs * rows).sum(axis=1), np.sqrt(np.maximum(0.0, variance))


class Extrapolated(NamedTuple):
    """The steps of a replay that are far from every recorded size, larger, smaller or between.

    ``decoding`` and ``prompt`` are the most decoding requests and the most prompt tokens that are far; 0: none are.
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
        costs: seconds; without a bend where the recording shows none.
        forms: these costs, and others with other bends or floors that fit the recording about as well.
        size_ratios: by size (:func:`prefill_tokens`), how many times the sum of costs such steps take.
        shape_ratios: by batch shape (:func:`shape_of`), how many times that.
        gap: seconds from the end of a step to the beginning of the next while requests are there (mean, without those
            in which the server stood still).
        noise: median relative difference of steps with the same batch shape from their shape's median.
        noise_steps: the steps behind ``noise``.
        slowest, fastest: the time of the recording's parts as a multiple of the model's prediction.
        sizes: recorded.
        left_out: how well sizes that are left out of the fit are known.
        steps: recorded.
        held_up_steps: the steps that took more than HELD_UP times the prediction.
        held_up_s: by how many seconds they did, in all.
    """

    costs: StepCosts
    forms: Forms
    size_ratios: Mapping[int, float]
    shape_ratios: Mapping[Shape, float]
    gap: float
    noise: float
    noise_steps: int
    fastest: float
    slowest: float
    sizes: RecordedSizes
    left_out: LeftOut
    steps: int
    held_up_steps: int
    held_up_s: float

    def seconds(self, counts: StepCounts, speed: float = 1.0, deviations: float = 0.0) -> float:
        """Return the time from the beginning of a step to that of the next one; never below a tenth of its costs.

        Args:
            counts: of the step, which may be of a size that was not recorded.
            speed: how many times as long every step takes.
            deviations: 0 for the likeliest time; else the edge of the interval below (negative) or above it, for costs
                that are as many standard deviations from the likeliest.
        """
        ratio = self._ratio(counts)
        likeliest = ratio * self.costs.seconds(counts)
        edge = self._edge(counts, deviations, ratio, likeliest) if deviations else likeliest
        return speed * (max(edge, likeliest / 10) + self.gap)

    def _ratio(self, counts: StepCounts) -> float:
        return self.size_ratios.get(prefill_tokens(counts), 1.0) * self.shape_ratios.get(shape_of(counts), 1.0)

    def _edge(self, counts: StepCounts, deviations: float, ratio: float, likeliest: float) -> float:
        """The time at one edge of the interval."""
        said, deviation = self.forms.seconds(counts)
        times: list[float] = [likeliest, *(ratio * said + deviations * deviation).tolist()]
        place = bisect_left(self.sizes.tokens, counts.tokens)
        recorded = place < len(self.sizes.tokens) and self.sizes.tokens[place] == counts.tokens
        beyond = 1.0 if recorded else 1.0 + self.left_out.beyond
        if deviations > 0:
            if self.sizes.tokens and bend_is_unseen(self.costs.bend, self.sizes.tokens[-1]):
                times.append(ratio * in_proportion(self.costs, counts, self.sizes.tokens[-1]))
            return max(times) * beyond
        low = min(times) / beyond
        if counts.prompt:  # what decodes in it takes as long without the prompts
            alone = counts._replace(prompt=0)
            ratio = self._ratio(alone)
            low = max(low, self._edge(alone, deviations, ratio, ratio * self.costs.seconds(alone)))
        return low

    def prompt_token_share(self, counts: StepCounts) -> float:
        """Return the share of each prompt token in the cost of a step: the mean of what they add to it."""
        whole = self.costs.seconds(counts)
        if not counts.prompt or not whole:
            return 0.0
        return (whole - self.costs.seconds(counts._replace(prompt=0))) / whole / counts.prompt

    @property
    def longest_gap(self) -> float:
        """The seconds between two steps beyond which the server stood still."""
        return HELD_UP * max(PAUSE_S, self.gap)

    def excess(self, counts: StepCounts, seconds: float) -> float:
        """By how many seconds such a step was held up, which took ``seconds``; 0.0: it was not."""
        usual = self.seconds(counts) - self.gap
        return seconds - usual if seconds > HELD_UP * usual else 0.0

    def extrapolated(self, sizes: Mapping[tuple[int, int], int]) -> Extrapolated:
        """Return the steps whose decoding requests or prompt tokens are far from every recorded number.

        Args:
            sizes: how many steps there are of each (:func:`step_size`).
        """
        found = Extrapolated()
        for (decoding, prompt), steps in sizes.items():
            far = decoding * is_far(self.sizes.decoding, decoding), prompt * is_far(self.sizes.prompt, prompt)
            if any(far):
                found |= Extrapolated(steps, *far)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": dict(zip(TERMS, self.costs.costs, strict=True)),
            "bend_tokens": self.costs.bend,
            "gap_s": self.gap,
            "noise_floor": self.noise,
            "same_shape_steps": self.noise_steps,
            "left_out": self.left_out._asdict(),
            "steps": self.steps,
            "parts": [self.fastest, self.slowest],
            "held_up_steps": self.held_up_steps,
            "held_up_s": self.held_up_s,
        }


def bend_is_unseen(bend: float | None, largest: float) -> bool:
    """Return whether steps may get much longer beyond the largest recorded one (tokens) than the costs say.

    They do not where a bend was seen: with twice its tokens a step of a roofline takes twice its floor.
    """
    return bend is None or largest < 2 * bend


def in_proportion(costs: StepCosts, counts: StepCounts, largest: int) -> float:
    """Return the most that a step may take by a roofline that takes what the costs say up to ``largest`` tokens.

    That is in proportion to the tokens: a roofline is nowhere steeper than a line from 0. Of a smaller step it is what
    the costs say.
    """
    if counts.tokens <= largest:
        return costs.seconds(counts)
    share = largest / counts.tokens
    flat = costs.context * counts.context
    decoding = round(share * counts.decoding)
    like = counts._replace(decoding=decoding, prompt=max(int(counts.prompt > 0), largest - decoding), context=0)
    if not counts.prompt:
        like = like._replace(decoding=largest, prompt=0)
    return costs.seconds(like) / share + flat


class Speeds:
    """How fast the recorded machine was at each moment: the seconds of the model that it got done by then.

    A machine that other processes hold up, or that collects garbage, stands still whatever is in the batch. So a step
    of a replay, at the same moment, gets as little done as the recorded one did. Outside of recorded steps it is as
    fast as the model.

    Args:
        model: what was fitted on ``steps``.
        steps: every recorded step of one server, in order.
        held_up: count only the steps in which the machine was held up, and take the others for as fast as the model.
    """

    def __init__(self, model: StepTime, steps: Sequence[Step], held_up: bool = False) -> None:
        self._at, self._done = [0.0], [0.0]  # a line of points: seconds of the recording, and of the model
        features = StepFeatures()
        for step, after in zip_longest(steps, steps[1:]):
            over = step.over + model.gap
            if after:
                over = after.began if after.busy else min(over, after.began)
            idle = max(0.0, step.began - self._at[-1])
            self._done.append(self._done[-1] + idle)
            self._at.append(self._at[-1] + idle)
            counts = features.of(step)
            as_usual = over - step.over <= model.longest_gap and not model.excess(counts, step.over - step.began)
            if held_up and as_usual:
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

    def __call__(self, step: Step) -> float:
        seconds = self.model.seconds(self.features.of(step), self.speed, self.deviations)
        return self.speeds.seconds(step.began, seconds) if self.speeds else seconds


@dataclass
class Paced:
    """The time of a step where the server takes it from the model of a device (``pace``), as a replay asks it."""

    pace: Pace
    gap: float = 0.0  # seconds to the next step
    contexts: Contexts = field(default_factory=Contexts)

    def __call__(self, step: Step) -> float:
        return self.pace.seconds(step.tokens, self.contexts.each(step)) * self.pace.slower + self.gap


def prefill_tokens(counts: StepCounts) -> int:
    """The tokens of a step with prompts; 0 for one that only decodes."""
    return counts.decoding + counts.prompt if counts.prompt else 0


def step_size(step: Step) -> tuple[int, int]:
    """The decoding requests and the prompt tokens of a step."""
    counts = StepCounts.of(step.phase, step.tokens)
    return counts.decoding, counts.prompt


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
