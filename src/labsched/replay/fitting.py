"""The fit of a model of a step's time on recorded steps (``labsched.replay.steptime`` says what it is made of).

The form is looked for on a grid: a bend at one of many sizes or none, and a floor of steps with prompts or none. With
each of them the costs are a problem of least squares. A size counts once, however many of its steps were recorded. A
bend is shown where the costs without one are further off, by over two standard deviations, than the best ones; a floor,
which a short recording hardly tells from the cost of tokens, by over three. Every form within three standard deviations
from the best is an edge of the interval.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from labsched.costs import StepCosts, StepCounts
from labsched.errors import LabError
from labsched.log.lines import RECORD
from labsched.pace import counts_of
from labsched.replay.steptime import (
    DEVIATIONS,
    HELD_UP,
    LEAST,
    PAUSE_S,
    ROUND,
    TOKEN,
    Contexts,
    Forms,
    LeftOut,
    RecordedSizes,
    Shape,
    StepFeatures,
    StepTime,
    bend_is_unseen,
    prefill_tokens,
    require_steps,
    shape_of,
)
from labsched.step import Step

PARTS = 10  # of a recording, whose speeds are compared
LEAST_PART = 5  # steps of such a part
TRUST_SIZE, TRUST_SHAPE = 0.5, 2  # steps of one size or shape that weigh as much as the estimate before them
PASSES = 5  # of the fit: each weighs the steps by the previous pass's predictions
DIGITS = 6  # decimal places of a misfit: those below are rounding's, which differs between processors
EXACT = 1e-6  # relative error below which a fit is as good as exact
BENDS, FINER = 16, 20  # sizes of the grid, and of the finer one over the bends that fit
BENT, LIKELY = 2.0**2, 3.0**2  # how much worse than the best a line may fit, and any form: squared standard deviations
SAME = 0.01  # relative error that a size may have beside its noise, because no form is exact
FORMS = 5  # of a kind are kept
COSTS = 9  # of StepCosts.occurrences, in that order
PROMPTS = 1  # the place of the floor of steps with prompts
FLOOR = (0, 1, 5)  # those of what a step that has prompts and makes tokens costs whatever its size
LEAST_LEFT_OUT = 3  # steps of a size that is left out
LEAST_CALM = 3  # steps of decoding with no prompts near, where a device is measured
Array = npt.NDArray[np.float64]
Key = TypeVar("Key", int, Shape)
Size = tuple[bool, int]  # whether a step has prompts, and its tokens to the nearest half power of two
Bend = float | None


def fit(*recorded: Sequence[Step], least: int = LEAST) -> StepTime:
    """A model of the steps of a recording, or of several servers', by least squares with no negative cost.

    Raises:
        LabError: there are fewer steps than ``least``.
    """
    steps = list(itertools.chain(*recorded))
    require_steps(len(steps), least)
    counts = [step for server in recorded for step in map(StepFeatures().of, server)]
    y = np.maximum([step.over - step.began for step in steps], 1e-6)  # the log has microseconds
    samples = _Samples.of(counts, y)
    sizes, shapes = [prefill_tokens(step) for step in counts], [shape_of(step) for step in counts]
    kept = _kept(samples, shapes)
    form, others, left_out = _bent(samples, kept)
    costs, predicted = _relative(samples.table(form.bend, form.prompts), y, kept)
    forms = [form._replace(costs=costs), *others]
    size_ratios, predicted = _corrected(sizes, y, predicted, kept, TRUST_SIZE)
    shape_ratios, predicted = _corrected(shapes, y, predicted, kept, TRUST_SHAPE)
    pairs = itertools.chain.from_iterable(itertools.pairwise(server) for server in recorded)
    gap = _usual_gap(np.array([step.began - before.over for before, step in pairs if step.busy]))
    noise, noise_steps = _noise(list(itertools.compress(counts, kept)), y[kept])
    parts = [part for part in np.array_split(np.flatnonzero(kept), PARTS) if len(part) >= LEAST_PART]
    speeds = [float(y[part].sum() / predicted[part].sum()) for part in parts] or [1.0]
    held_up = y > HELD_UP * predicted
    return StepTime(
        costs=_step_costs(costs, form.bend),
        forms=Forms(
            costs=np.array([one.costs for one in forms]),
            bends=np.array([math.nan if one.bend is None else one.bend for one in forms]),
            doubt=np.array([_doubt(samples, kept, one) for one in forms]),
        ),
        size_ratios=size_ratios,
        shape_ratios=shape_ratios,
        gap=gap,
        noise=noise,
        noise_steps=noise_steps,
        fastest=min(speeds),
        slowest=max(speeds),
        sizes=RecordedSizes.of(counts),
        left_out=left_out,
        steps=len(steps),
        held_up_steps=int(held_up.sum()),
        held_up_s=float((y - predicted)[held_up].sum()),
    )


def _usual_gap(gaps: Array) -> float:
    """The mean time between two steps, without times in which the server stood still."""
    if not gaps.size:
        return 0.0
    return float(gaps[gaps <= HELD_UP * max(PAUSE_S, float(np.median(gaps)))].mean())


# -- a device's own numbers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What steps cost on a device, and how well that says what it was fitted on.

    Attributes:
        costs: as a server takes them for its own (``pace_table``).
        said_s, took_s: seconds of all recorded steps by the costs, and by the engine's own clock.
        steps: recorded.
    """

    costs: StepCosts
    said_s: float
    took_s: float
    steps: int


def measure_device(steps: Sequence[Step]) -> Measured:
    """Fit the costs of the device on which these steps were recorded.

    With steps decided ahead, a server notices the end of a step only when it has launched the next one. Launching a
    step with prompts kernel by kernel takes longer than a step of decoding, and so the time of the one stands beside
    the other. What is right is their sum. So the steps next to one with prompts are one sample together.

    Raises:
        LabError: the recording has too few steps of decoding, or none with prompts, or lacks the engine's times.
    """
    contexts, counts, seconds = Contexts(), [], []
    for step in steps:
        if step.engine_us is None:
            raise LabError(
                "this recording lacks the engine's own times",
                "no engine_us is in its steps: the recorder for a vLLM of your own sees the scheduler, not the engine",
                RECORD,
                code="device-unmeasured",
            )
        counts.append(counts_of(step.tokens, contexts.each(step)))
        seconds.append(step.engine_us / 1e6)
    prompts = ["p" in step.phase for step in steps]
    near = [
        prompts[at]
        or (steps[at].busy and at > 0 and prompts[at - 1])
        or (at + 1 < len(steps) and steps[at + 1].busy and prompts[at + 1])
        for at in range(len(steps))
    ]
    if near.count(False) < LEAST_CALM:
        raise LabError(
            "no step of decoding can be timed",
            f"{near.count(False)} of {len(steps):,} have no prompts near, of at least {LEAST_CALM}",
            RECORD,
            code="device-unmeasured",
        )
    if not any(prompts):
        raise LabError(
            "no step with prompts was recorded",
            f"{len(steps):,} steps of decoding were",
            RECORD,
            code="device-unmeasured",
        )
    together = []
    for beside, run in groupby(range(len(steps)), lambda at: near[at]):
        group = [*run]
        together += [group] if beside else [[at] for at in group]
    samples = _Samples.of(counts, np.maximum(seconds, 1e-6), together)
    kept = _kept(samples, [shape_of(counts[max(group, key=lambda at: counts[at].prompt)]) for group in together])
    form, _, _ = _bent(samples, kept)
    costs, _ = _relative(samples.table(form.bend, form.prompts), samples.seconds, kept)
    found = StepCosts.of(_step_costs(costs, form.bend).text)  # with the numbers as the text rounds them
    return Measured(found, sum(map(found.seconds, counts)), sum(seconds), len(steps))


# -- the bend ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Samples:
    """Timed steps, as least squares takes them; a sample may be a sum of several.

    Attributes:
        counts: of each step: the columns of :class:`StepCounts`.
        sample: for each step, the place of the sample that it belongs to.
        seconds: of each sample.
        sizes: of each sample: of its step with the most tokens.
    """

    counts: Array
    sample: npt.NDArray[np.intp]
    seconds: Array
    sizes: Sequence[Size]

    @classmethod
    def of(cls, counts: Sequence[StepCounts], seconds: Array, together: Sequence[Sequence[int]] = ()) -> _Samples:
        """Take each step for a sample, or those whose places stand ``together``; ``seconds`` are of each step."""
        together = together or [[at] for at in range(len(counts))]
        sample = np.zeros(len(counts), dtype=np.intp)
        sizes = []
        for number, group in enumerate(together):
            sample[list(group)] = number
            largest = max((counts[at] for at in group), key=lambda step: step.tokens)
            sizes.append((largest.prompt > 0, round(2 * math.log2(max(1, largest.tokens)))))
        summed: Array = np.bincount(sample, seconds, len(together)).astype(np.float64)
        return cls(np.array(counts, dtype=np.float64), sample, summed, sizes)

    def table(self, bend: Bend, prompts: bool = True) -> Array:
        """Return how often each sample has each cost, [samples, COSTS]; without ``prompts``, no floor of theirs."""
        decoding, prompt, context = self.counts[:, 0], self.counts[:, 1], self.counts[:, 2]
        costly = prompt if bend is None else np.maximum(0.0, decoding + prompt - bend)
        floor = (prompt > 0) * float(prompts)
        steps = np.column_stack((np.ones(len(prompt)), floor, decoding, costly, context, self.counts[:, 3:7]))
        if len(steps) == len(self.seconds):
            return steps
        return np.column_stack([np.bincount(self.sample, column, len(self.seconds)) for column in steps.T])

    @property
    def tokens(self) -> Array:
        """The tokens of each step."""
        return self.counts[:, 0] + self.counts[:, 1]


@dataclass(frozen=True)
class _Sizes:
    """The samples by size, with one bend: all that least squares needs of them. The first axis is the size.

    A row is the occurrences of the costs in a sample, and its seconds; relatively, as multiples of the time that a
    first fit gave the sample.

    Attributes:
        prompts: whether the steps have prompts.
        tokens: the mean of the samples' tokens.
        samples: how many there are.
        spread: the relative standard deviation of their seconds.
        rows: the mean row.
        relative: the same of the relative rows.
        triangles: of the QR decomposition of the relative rows.
    """

    prompts: npt.NDArray[np.bool_]
    tokens: Array
    samples: Array
    spread: Array
    rows: Array
    relative: Array
    triangles: Array

    @cached_property
    def triangle(self) -> Array:
        """Return the triangle of the QR decomposition of all relative rows."""
        return _triangle(self.triangles.reshape(-1, COSTS + 1))

    def which(self, places: npt.NDArray[np.bool_]) -> _Sizes:
        """Return some of the sizes."""
        return _Sizes(**{field.name: getattr(self, field.name)[places] for field in fields(self)})


class _Form(NamedTuple):
    """Costs of one form, and how badly they fit.

    ``prompts``: steps with prompts have a floor of their own. ``misfit``: the sum over the sizes of their squared
    errors, in squared deviations; less that of the best form, once these are known.
    """

    bend: Bend
    prompts: bool
    costs: Array
    misfit: float


def _kept(samples: _Samples, shapes: Sequence[Shape]) -> npt.NDArray[np.bool_]:
    """Which samples ran while the machine was not held up."""
    x, y = samples.table(None), samples.seconds
    kept = np.ones(len(y), dtype=bool)
    _, predicted = _relative(x, y, kept)
    kept = _undisturbed(shapes, y / predicted)
    if not kept.all():  # once more without the steps that the machine was held up in
        _, predicted = _relative(x, y, kept)
        kept = _undisturbed(shapes, y / predicted)
    return kept


def _bent(samples: _Samples, kept: npt.NDArray[np.bool_]) -> tuple[_Form, list[_Form], LeftOut]:
    """The form that the samples show, others that fit about as well, and the test of sizes that are left out."""
    _, predicted = _relative(samples.table(None), samples.seconds, kept)
    smallest, largest = max(1.0, samples.tokens.min()), max(1.0, samples.tokens.max())

    groups: dict[Size, list[int]] = defaultdict(list)
    for place in np.flatnonzero(kept):
        groups[samples.sizes[place]].append(int(place))

    def by_bend(bends: Iterable[float]) -> dict[Bend, _Sizes]:
        return {bend: _by_size(samples, kept, predicted, groups, bend) for bend in (None, *bends)}

    coarse = by_bend(map(float, np.unique(np.geomspace(smallest, largest, BENDS)[:-1])))
    every, step = coarse, (largest / smallest) ** (1 / (BENDS - 1))
    forms = _fitted(every)
    if bends := [form.bend for form in forms if form.bend is not None]:  # those that fit, and then the best of them
        low, high = min(bends) / step, min(largest, max(bends) * step)
        every = every | by_bend(map(float, np.geomspace(low, high, FINER)))
        best = min((form for form in _fitted(every) if form.bend), key=lambda form: form.misfit).bend or largest
        step = (high / low) ** (1 / (FINER - 1))
        forms = _fitted(every | by_bend(map(float, np.geomspace(best / step, min(largest, best * step), FINER // 2))))
    form = _shown(forms)
    others = [*_edges(forms, False), *_edges(forms, True)]
    return form, [other for other in others if other is not form], _left_out(coarse)


def _edges(forms: Sequence[_Form], prompts: bool) -> list[_Form]:
    """FORMS of the forms with a floor of steps with prompts, or without, from the first bend to the last."""
    alike = [form for form in forms if form.prompts == prompts]
    places = {round(at) for at in np.linspace(0, len(alike) - 1, FORMS)} if alike else set()
    return [alike[place] for place in sorted(places)]


def _by_size(
    samples: _Samples, kept: npt.NDArray[np.bool_], predicted: Array, groups: Mapping[Size, Sequence[int]], bend: Bend
) -> _Sizes:
    order = np.concatenate([np.array(places) for places in groups.values()])
    counts = np.array([len(places) for places in groups.values()])
    starts = np.cumsum(counts) - counts

    def means(values: Array) -> Array:
        found: Array = np.add.reduceat(values, starts) / counts.reshape(-1, *[1] * (values.ndim - 1))
        return found

    rows = np.column_stack((_told_apart(samples.table(bend), kept), samples.seconds))[order]
    relative = rows / predicted[order, None]
    triangles = np.zeros((len(groups), COSTS + 1, COSTS + 1))
    for number, group in enumerate(np.split(relative, starts[1:])):
        triangle = _triangle(group)
        triangles[number, : len(triangle)] = triangle
    mean = means(rows)
    variance = means(rows[:, -1] ** 2) - mean[:, -1] ** 2
    tokens = np.bincount(samples.sample, samples.tokens, len(samples.seconds)) / np.bincount(samples.sample)
    return _Sizes(
        prompts=np.array([prompts for prompts, _ in groups]),
        tokens=means(tokens[order]),
        samples=counts.astype(np.float64),
        spread=np.sqrt(np.maximum(0.0, variance)) / mean[:, -1],
        rows=mean,
        relative=means(relative),
        triangles=triangles,
    )


def _fitted(by_bend: Mapping[Bend, _Sizes]) -> list[_Form]:
    """The forms that fit about as well as the best one, from the first bend to the last.

    A line that would be below 0 at no tokens is no form: a bend is where arithmetic begins to take longer than what a
    step takes whatever its size.
    """
    bends = sorted(by_bend, key=lambda bend: bend or 0.0)
    every = [by_bend[bend] for bend in bends]
    of_sizes = np.array([sizes.triangles for sizes in every])
    triangles = np.repeat(_triangle(of_sizes.reshape(len(every), -1, COSTS + 1)), 2, axis=0)
    triangles[::2, :, PROMPTS] = 0  # each bend without a floor, and with one
    costs = non_negative(triangles[:, :, :-1], triangles[:, :, -1])
    off = np.column_stack((costs, np.full(len(costs), -1.0)))[:, None, :, None]
    relative = np.repeat(np.array([sizes.relative for sizes in every]), 2, axis=0)
    means = (relative[:, :, None] @ off)[:, :, 0, 0]  # the error of each size
    squares = (np.repeat(of_sizes, 2, axis=0) @ off) ** 2
    samples = by_bend[None].samples
    withins = squares.sum(axis=(1, 2, 3)) - (means**2 * samples).sum(axis=1)
    solved = [
        (_Form(bends[place // 2], place % 2 == 1, one, 0.0), mean, max(0.0, float(within)))
        for place, (one, mean, within) in enumerate(zip(costs, means, withins, strict=True))
        if (bend := bends[place // 2]) is None or one[TOKEN] * bend <= one[list(FLOOR)].sum() * (1 + EXACT)
    ]
    deviations = min(within for *_, within in solved) / samples.sum() / samples + SAME**2
    misfits = [float((mean**2 / deviations).sum()) for _, mean, _ in solved]
    best, free = min(misfits), max(1, len(samples) - 3)  # the costs of a step and of a token, and the bend, are fitted
    # All bends between two recorded sizes fit alike: the smallest comes first, whatever processor this is.
    worse = [round((misfit - best) / max(1.0, best / free), DIGITS) for misfit in misfits]
    return [form._replace(misfit=more) for (form, _, _), more in zip(solved, worse, strict=True) if more <= LIKELY]


def _shown(forms: Sequence[_Form]) -> _Form:
    """The form that the recording shows: the best, but without a floor or a bend that it may lack as well."""
    alike = [form for form in forms if not form.prompts] or forms
    best = min(alike, key=lambda form: form.misfit)
    lines = [form for form in alike if form.bend is None and form.misfit <= best.misfit + BENT]
    return lines[0] if lines else best


def _left_out(by_bend: Mapping[Bend, _Sizes]) -> LeftOut:
    """The test of the interval: each size is left out in turn, and its mean time compared with what the others say."""
    every = by_bend[None]
    errors, beyond = [], []
    for place in np.flatnonzero(every.samples >= LEAST_LEFT_OUT):
        others = np.arange(len(every.samples)) != place
        if every.prompts[place] not in every.prompts[others]:  # nothing is known of a kind that is left out as a whole
            continue
        rest = {bend: sizes.which(others) for bend, sizes in by_bend.items()}
        forms = _fitted(rest)
        form = _shown(forms)
        said, likeliest, true = list[float](), 0.0, float(every.rows[place, -1])
        for other in (*_edges(forms, False), *_edges(forms, True), form):
            row = by_bend[other.bend].rows[place, :-1]
            likeliest = float(row @ other.costs)  # in the end it is that of the form itself
            doubt = DEVIATIONS * _deviation(rest[other.bend], other, row)
            said += [likeliest - doubt, likeliest + doubt]
        largest = int(rest[form.bend].tokens.argmax())
        more = every.tokens[place] / rest[form.bend].tokens[largest]
        if more > 1 and bend_is_unseen(form.bend, rest[form.bend].tokens[largest]):
            said.append(float(rest[form.bend].rows[largest, :-1] @ form.costs) * more)
        chance = 1.0 + DEVIATIONS * float(every.spread[place]) / math.sqrt(every.samples[place])
        low, high = min(said) / chance, max(said) * chance
        errors.append(abs(likeliest / true - 1))
        beyond.append(max(0.0, true / high - 1, low / true - 1))
    if not errors:
        return LeftOut()
    nine_of_ten = sorted(beyond)[math.ceil(0.9 * len(beyond)) - 1]
    return LeftOut(len(errors), sum(off <= EXACT for off in beyond), float(np.median(errors)), nine_of_ten)


def _deviation(sizes: _Sizes, form: _Form, row: Array) -> float:
    """The standard deviation (seconds) of what a form says of a row, by what is known of its costs from these sizes."""
    triangle = sizes.triangle
    error = max(math.sqrt(float(((triangle @ np.append(form.costs, -1.0)) ** 2).sum() / sizes.samples.sum())), EXACT)
    most = np.maximum(sizes.rows[:, :-1].max(axis=0), 1.0)
    usual = float(sizes.rows[:, -1] @ sizes.samples / sizes.samples.sum())
    covariance = _covariance(triangle[:, :-1] / most, error, usual, most, form.prompts)
    return math.sqrt(max(0.0, float(row @ covariance @ row)))


def _triangle(rows: Array) -> Array:
    """The triangle of the QR decomposition of ``rows``, or of each of several: to least squares it is the same."""
    triangle: Any = np.linalg.qr(rows, mode="r")
    found: Array = triangle
    return found


def _step_costs(costs: Array, bend: Bend) -> StepCosts:
    return replace(StepCosts(*map(float, costs)), bend=bend)


# -- least squares ----------------------------------------------------------------------------------------------------


def _undisturbed(shapes: Sequence[Shape], ratios: Array) -> npt.NDArray[np.bool_]:
    """Which steps ran while the machine was not held up, by each step's time as a multiple of its sum of costs.

    A batch shape may always take many times its sum of costs. A single slow step is not such a shape: two more
    steps with a ratio of 1 are assumed for each shape.
    """
    by_shape: dict[Shape, list[float]] = defaultdict(lambda: [1.0, 1.0])
    for shape, ratio in zip(shapes, ratios, strict=True):
        by_shape[shape].append(float(ratio))
    usual = {shape: max(1.0, float(np.median(same))) for shape, same in by_shape.items()}
    return np.array([ratio <= HELD_UP * usual[shape] for shape, ratio in zip(shapes, ratios, strict=True)])


def _relative(x: Array, y: Array, kept: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """The costs with the smallest relative errors on the steps ``kept``, and their prediction for each step.

    For a kept step the prediction is never below a tenth of the step's time.
    """
    known = _told_apart(x, kept)
    weights = np.ones(int(kept.sum()))
    for _ in range(PASSES):
        costs = non_negative(known[kept] * weights[:, None], y[kept] * weights)
        predicted = np.maximum(known @ costs, np.where(kept, y / 10, 1e-6))
        weights = 1 / predicted[kept]
    return costs, predicted


def _told_apart(x: Array, kept: npt.NDArray[np.bool_]) -> Array:
    """The same without what occurs as often in every sample: else it would share the cost of a step."""
    known = x.copy()
    constant = x[kept, 1:].min(axis=0) == x[kept, 1:].max(axis=0)
    known[:, 1:][:, constant] = 0
    return known


def _doubt(samples: _Samples, kept: npt.NDArray[np.bool_], form: _Form) -> Array:
    """The covariance of a form's costs (seconds squared), [COSTS, COSTS], by Bayes' rule for least squares.

    Before the recording is seen, each cost may make up a whole step where there is most of it. So two costs that
    always occur together, a step and its one decoding request, are known as a sum, and either alone is not.
    """
    x, y = samples.table(form.bend)[kept], samples.seconds[kept]
    predicted = np.maximum(x @ form.costs, y / 10)
    most = np.maximum(x.max(axis=0), 1.0)
    error = max(float(np.sqrt(np.mean(((y - predicted) / predicted) ** 2))), EXACT)
    return _covariance(x / most / predicted[:, None], error, float(y.mean()), most, form.prompts)


def _covariance(relative: Array, error: float, usual: float, most: Array, prompts: bool) -> Array:
    """The covariance of costs from rows that are multiples of ``most`` and have this relative error.

    Args:
        usual: the seconds that each cost may make up, before anything is known.
        prompts: steps with prompts have a floor of their own; without, it is known to be 0.
    """
    used = [place for place in range(COSTS) if prompts or place != PROMPTS]
    values, vectors = np.linalg.eigh(relative[:, used].T @ relative[:, used])
    # A sum that is known a million times better than its parts is no reason for a singular matrix.
    known = np.maximum(values, 0.0) / error**2 + 1 / usual**2
    covariance = np.zeros((COSTS, COSTS))
    covariance[np.ix_(used, used)] = vectors / known @ vectors.T
    scaled: Array = covariance / np.outer(most, most)
    return scaled


def _corrected(
    keys: Sequence[Key], y: Array, predicted: Array, kept: npt.NDArray[np.bool_], trust: float
) -> tuple[dict[Key, float], Array]:
    """The ratios of times to predictions by key, and each step's prediction times its ratio.

    A ratio is the mean of the kept steps with this key, with ``trust`` more steps of 1.0.
    """
    by_key: dict[Key, list[float]] = defaultdict(list)
    for key, ratio, counts in zip(keys, y / predicted, kept, strict=True):
        same = by_key[key]
        if counts:
            same.append(float(ratio))
    ratios = {key: (sum(same) + trust) / (len(same) + trust) for key, same in by_key.items()}
    return ratios, predicted * np.array([ratios[key] for key in keys])


def non_negative(x: Array, y: Array) -> Array:
    """The weights w >= 0 of the columns of ``x`` [n, k] that make ``x @ w`` nearest to ``y`` [n]; or of several such
    problems at once, [m, n, k] and [m, n].

    Each step drops the column with the most negative weight; with nine columns that is the optimum or next to it.
    """
    scale = np.maximum(np.abs(x).max(axis=-2), 1.0)
    scaled = (x / scale[..., None, :]).reshape(-1, *x.shape[-2:])  # a dropped column is one of zeros
    wanted = y.reshape(len(scaled), -1)
    weights = np.zeros((len(scaled), x.shape[-1]))
    unsolved = np.arange(len(scaled))
    while len(unsolved):
        weights[unsolved] = found = _least_squares(scaled[unsolved], wanted[unsolved])
        negative = found.min(axis=1) < 0
        unsolved = unsolved[negative]
        scaled[unsolved, :, found[negative].argmin(axis=1)] = 0
    solved: Array = weights.reshape(scale.shape) / scale
    return solved


def _least_squares(x: Array, y: Array) -> Array:
    """The smallest weights [m, k] that make ``x @ w`` nearest to ``y``; that of a column of zeros is 0."""
    left, values, right = np.linalg.svd(x, full_matrices=False)
    known = values > np.finfo(np.float64).eps * max(x.shape[1:]) * values.max(axis=1, keepdims=True)
    along = (y[:, None] @ left)[:, 0] * np.divide(1.0, values, out=np.zeros_like(values), where=known)
    found: Array = (along[:, None] @ right)[:, 0] * x.any(axis=1)
    return found


def _noise(counts: Sequence[StepCounts], y: Array) -> tuple[float, int]:
    """The noise floor: how much steps of the same batch shape differ; and of how many steps it was taken."""
    alike: dict[StepCounts, list[float]] = defaultdict(list)
    for step, seconds in zip(counts, y, strict=True):
        shape = step._replace(context=step.context // ROUND, makes_tokens=True)  # a step without tokens is no other one
        alike[shape].append(float(seconds))
    differences: list[float] = []
    for times in alike.values():
        if len(times) > 1:
            middle = float(np.median(times))
            differences += [abs(seconds - middle) / middle for seconds in times]
    return (float(np.median(differences)) if differences else 0.0), len(differences)
