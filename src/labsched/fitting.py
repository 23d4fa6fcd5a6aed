"""The fit of a model of a step's time on recorded steps (``labsched.steptime`` says what it is made of)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from labsched.recording import StepRow
from labsched.steptime import (
    HELD_UP,
    LEAST,
    ROUND,
    LargestStep,
    Shape,
    StepCounts,
    StepFeatures,
    StepTime,
    prefill_tokens,
    require_steps,
    shape_of,
)

PARTS = 10  # of a recording, whose speeds are compared
LEAST_PART = 5  # steps of such a part
TRUST_SIZE, TRUST_SHAPE = 0.5, 2  # steps of one size or shape that weigh as much as the estimate before them
PASSES = 5  # of the fit: each weighs the steps by the previous pass's predictions
EXACT = 1e-6  # relative error below which a fit is as good as exact
Array = npt.NDArray[np.float64]
Key = TypeVar("Key", int, Shape)


def fit(*recorded: Sequence[StepRow], least: int = LEAST) -> StepTime:
    """A model of the steps of a recording, or of several servers', by least squares with no negative cost.

    Raises:
        LabError: there are fewer steps than ``least``.
    """
    rows = list(itertools.chain(*recorded))
    require_steps(len(rows), least)
    counts = [step for server in recorded for step in map(StepFeatures().of, server)]
    x = np.array(counts, dtype=np.float64)
    y = np.maximum([row.over - row.began for row in rows], 1e-6)  # the log has microseconds
    sizes, shapes = [prefill_tokens(step) for step in counts], [shape_of(step) for step in counts]
    kept = np.ones(len(y), dtype=bool)
    costs, predicted = _relative(x, y, kept)
    kept = _undisturbed(shapes, y / predicted)
    if not kept.all():  # once more without the steps that the machine was held up in
        costs, predicted = _relative(x, y, kept)
        kept = _undisturbed(shapes, y / predicted)
    size_ratios, predicted = _corrected(sizes, y, predicted, kept, TRUST_SIZE)
    shape_ratios, predicted = _corrected(shapes, y, predicted, kept, TRUST_SHAPE)
    pairs = itertools.chain.from_iterable(itertools.pairwise(server) for server in recorded)
    gaps = [row.began - before.over for before, row in pairs if row.busy]
    noise, noise_steps = _noise(list(itertools.compress(counts, kept)), y[kept])
    parts = [part for part in np.array_split(np.flatnonzero(kept), PARTS) if len(part) >= LEAST_PART]
    speeds = [float(y[part].sum() / predicted[part].sum()) for part in parts] or [1.0]
    held_up = y > HELD_UP * predicted
    return StepTime(
        costs=tuple(map(float, costs)),
        size_ratios=size_ratios,
        shape_ratios=shape_ratios,
        gap=float(np.mean(gaps)) if gaps else 0.0,
        noise=noise,
        noise_steps=noise_steps,
        error=float(np.median(np.abs(predicted - y) / y)),
        fastest=min(speeds),
        slowest=max(speeds),
        largest=LargestStep(max(len(row.batch) for row in rows), max(step.prompt for step in counts)),
        steps=len(rows),
        doubt=_doubt(x[kept], y[kept], predicted[kept]),
        held_up_steps=int(held_up.sum()),
        held_up_s=float((y - predicted)[held_up].sum()),
    )


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
    known = x.copy()
    constant = x[kept, 1:].min(axis=0) == x[kept, 1:].max(axis=0)
    known[:, 1:][:, constant] = 0  # else they would share the cost of a step
    weights = np.ones(int(kept.sum()))
    for _ in range(PASSES):
        costs = non_negative(known[kept] * weights[:, None], y[kept] * weights)
        predicted = np.maximum(known @ costs, np.where(kept, y / 10, 1e-6))
        weights = 1 / predicted[kept]
    return costs, predicted


def _doubt(x: Array, y: Array, predicted: Array) -> Array:
    """The covariance of the costs (seconds squared), [k, k], by Bayes' rule for least squares of relative errors.

    Before the recording is seen, each cost may make up a whole step where there is most of it. So two costs that
    always occur together, a step and its one decoding request, are known as a sum, and either alone is not.
    """
    most = np.maximum(x.max(axis=0), 1.0)
    relative = x / most / predicted[:, None]
    error = max(float(np.sqrt(np.mean(((y - predicted) / predicted) ** 2))), EXACT)
    known = relative.T @ relative / error**2 + np.eye(x.shape[1]) / float(y.mean()) ** 2
    covariance: Array = np.linalg.inv(known) / np.outer(most, most)
    return covariance


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
    """The weights w >= 0 of the columns of ``x`` [n, k] that make ``x @ w`` nearest to ``y`` [n].

    Each step drops the column with the most negative weight; with eight columns that is the optimum or next to it.
    """
    columns = list(range(x.shape[1]))
    scale = np.maximum(np.abs(x).max(axis=0), 1.0)
    while True:
        solution, *_ = np.linalg.lstsq(x[:, columns] / scale[columns], y, rcond=None)
        if solution.min() >= 0 or len(columns) == 1:
            weights = np.zeros(x.shape[1])
            weights[columns] = np.maximum(solution, 0) / scale[columns]
            return weights
        del columns[int(solution.argmin())]


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
