"""The fit of a model of a step's time on recorded steps (``labsched.steptime`` says what it is made of)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from labsched.errors import LabError
from labsched.lines import RECORD
from labsched.recording import StepRow
from labsched.steptime import HELD_UP, ROUND, Shape, StepFeatures, StepTime, prefill_tokens, shape_of

LEAST = 30  # steps that a model is fitted to
PARTS = 10  # of a recording, whose speeds are compared
LEAST_PART = 5  # steps of such a part
TRUST_SIZE, TRUST_SHAPE = 0.5, 2  # steps of one size or shape that weigh as much as the estimate before them
PASSES = 5  # of the fit: each weighs the steps by the previous pass's predictions
EXACT = 1e-6  # relative error below which a fit is as good as exact
Array = npt.NDArray[np.float64]
Key = TypeVar("Key", int, Shape)


def fit(*recorded: Sequence[StepRow]) -> StepTime:
    """A model of the steps of a recording, or of several servers', by least squares with no negative cost.

    Raises:
        LabError: there are too few steps.
    """
    rows = list(itertools.chain(*recorded))
    if len(rows) < LEAST:
        raise LabError(
            f"{len(rows)} recorded steps are too few for a model of their time",
            f"it takes at least {LEAST}",
            RECORD,
            code="steps-too-few",
        )
    servers = [(StepFeatures(), server) for server in recorded]
    x = np.array([features.of(row) for features, server in servers for row in server], dtype=np.float64)
    y = np.maximum([row.over - row.began for row in rows], 1e-6)  # the log has microseconds
    keys = [prefill_tokens(one) for one in x], [shape_of(one) for one in x]
    kept = np.ones(len(y), dtype=bool)
    costs, said = _relative(x, y, kept)
    kept = _undisturbed(keys[1], y / said)
    if not kept.all():  # once more without the steps that the machine was held up in
        costs, said = _relative(x, y, kept)
        kept = _undisturbed(keys[1], y / said)
    sizes, said = _corrected(keys[0], y, said, kept, TRUST_SIZE)
    shapes, said = _corrected(keys[1], y, said, kept, TRUST_SHAPE)
    pairs = itertools.chain.from_iterable(itertools.pairwise(server) for server in recorded)
    gaps = [row.began - before.over for before, row in pairs if row.busy]
    noise, twice = _noise(x[kept], y[kept])
    parts = [part for part in np.array_split(np.flatnonzero(kept), PARTS) if len(part) >= LEAST_PART]
    ratios = [float(y[part].sum() / said[part].sum()) for part in parts] or [1.0]
    most, held = x.max(axis=0), y > HELD_UP * said
    return StepTime(
        tuple(map(float, costs)),
        (sizes, shapes),
        float(np.mean(gaps)) if gaps else 0.0,
        noise,
        twice,
        float(np.median(np.abs(said - y) / y)),
        min(ratios),
        max(ratios),
        (max(len(row.batch) for row in rows), int(most[2]), int(most[3])),
        len(rows),
        _doubt(x[kept], y[kept], said[kept]),
        (int(held.sum()), float((y - said)[held].sum())),
    )


def _undisturbed(shapes: Sequence[Shape], ratios: Array) -> npt.NDArray[np.bool_]:
    """Which steps ran while the machine was not held up, by each step's time as a multiple of its sum of costs.

    A batch shape may always take many times its sum of costs. A single slow step is not such a shape: two more
    steps with a ratio of 1 are assumed for each shape.
    """
    found: dict[Shape, list[float]] = defaultdict(lambda: [1.0, 1.0])
    for shape, ratio in zip(shapes, ratios, strict=True):
        found[shape].append(float(ratio))
    usual = {shape: max(1.0, float(np.median(same))) for shape, same in found.items()}
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
        said = np.maximum(known @ costs, np.where(kept, y / 10, 1e-6))
        weights = 1 / said[kept]
    return costs, said


def _doubt(x: Array, y: Array, said: Array) -> Array:
    """The covariance of the costs (seconds squared), [k, k], by Bayes' rule for least squares of relative errors.

    Before the recording is seen, each cost may make up a whole step where there is most of it. So two costs that
    always occur together, a step and its one decoding request, are known as a sum, and either alone is not.
    """
    most = np.maximum(x.max(axis=0), 1.0)
    relative = x / most / said[:, None]
    error = max(float(np.sqrt(np.mean(((y - said) / said) ** 2))), EXACT)
    known = relative.T @ relative / error**2 + np.eye(x.shape[1]) / float(y.mean()) ** 2
    covariance: Array = np.linalg.inv(known) / np.outer(most, most)
    return covariance


def _corrected(
    keys: Sequence[Key], y: Array, said: Array, kept: npt.NDArray[np.bool_], trust: float
) -> tuple[dict[Key, float], Array]:
    """The ratio of times to ``said`` by key (its steps' mean, with ``trust`` steps of 1.0), and ``said`` times it."""
    found: dict[Key, list[float]] = defaultdict(list)
    for key, ratio, counts in zip(keys, y / said, kept, strict=True):
        same = found[key]
        if counts:
            same.append(float(ratio))
    ratios = {key: (sum(same) + trust) / (len(same) + trust) for key, same in found.items()}
    return ratios, said * np.array([ratios[key] for key in keys])


def non_negative(x: Array, y: Array) -> Array:
    """The weights w >= 0 of the columns of ``x`` [n, k] that make ``x @ w`` nearest to ``y`` [n].

    Each step drops the column with the most negative weight; with eight columns that is the optimum or next to it.
    """
    columns = list(range(x.shape[1]))
    scale = np.maximum(np.abs(x).max(axis=0), 1.0)
    while True:
        found, *_ = np.linalg.lstsq(x[:, columns] / scale[columns], y, rcond=None)
        if found.min() >= 0 or len(columns) == 1:
            weights = np.zeros(x.shape[1])
            weights[columns] = np.maximum(found, 0) / scale[columns]
            return weights
        del columns[int(found.argmin())]


def _noise(x: Array, y: Array) -> tuple[float, int]:
    """The noise floor: how much steps of the same batch shape differ; and of how many steps it was taken."""
    shapes: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for shape, seconds in zip(x, y, strict=True):
        key = int(shape[1]), int(shape[2]), int(shape[3]) // ROUND, *map(int, shape[5:])
        shapes[key].append(float(seconds))
    differences = [
        abs(one - middle) / middle
        for same in shapes.values()
        if len(same) > 1
        for middle in [float(np.median(same))]
        for one in same
    ]
    return (float(np.median(differences)) if differences else 0.0), len(differences)
