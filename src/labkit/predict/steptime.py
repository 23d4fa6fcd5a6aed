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

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from labkit.errors import LabError
from labkit.predict.contexts import Contexts
from labkit.predict.lines import RECORD
from labkit.predict.recording import Row
from labserve.inflight.pace import Pace, Work

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
LEAST = 30  # steps of which a model can be made
PARTS = 10  # of a recording, whose speeds are compared
LEAST_PART = 5  # steps of such a part
ROUND = 64  # tokens of context within which two batches have the same shape
TRUST_SIZE, TRUST_SHAPE = 0.5, 2  # steps of one size or shape that count as much as what was said of them before
PAUSE_S = 0.005  # with nothing to compute: clients that send when an answer is there need less
PASSES = 5  # of the fit, each of which weighs a step by what the one before said of it
EXACT = 1e-6  # relative error below which a fit is as good as exact
DEVIATIONS = 2.0  # of what is known of the costs, on either side of the interval
Array = npt.NDArray[np.float64]
Shape = tuple[int, int, bool]
Key = TypeVar("Key", int, Shape)


class Features:
    """What a step's time depends on, one number for each of TERMS. Ask it for every step of one server, in order."""

    def __init__(self) -> None:
        self._contexts = Contexts()
        self._met: set[int] = set()  # numbers of tokens
        self._prompts = False  # in the step before
        self._before: Row | None = None

    def of(self, row: Row) -> tuple[int, ...]:
        prefill = sum(count for letter, count in zip(row.phase, row.tokens, strict=True) if letter == "p")
        computed = sum(row.tokens)
        new = computed not in self._met
        self._met.add(computed)
        after, self._prompts = self._prompts and not prefill, prefill > 0
        before, self._before = self._before, row
        paused = before is not None and row.began - before.over > PAUSE_S
        return 1, row.phase.count("d"), prefill, self._contexts.of(row), any(row.made), new, after, paused


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
        ratios: by size (:func:`size_of`), how many times the sum of costs such steps take; by batch shape
            (:func:`shape_of`), how many times that.
        gap: seconds from the end of a step to the beginning of the next while requests are there (mean).
        noise: median relative difference of steps with the same batch shape from their shape's median.
        twice: the steps of which that is known.
        error: median relative error of the model on the recorded steps.
        slowest, fastest: the recording's parts took so many times what the model says.
        most: the largest batch, prefill tokens of a step and context recorded.
        doubt: the covariance of the costs (seconds squared), [8, 8].
    """

    costs: tuple[float, ...]
    ratios: tuple[Mapping[int, float], Mapping[Shape, float]]
    gap: float
    noise: float
    twice: int
    error: float
    fastest: float
    slowest: float
    most: tuple[int, int, int]
    steps: int
    doubt: Array

    def seconds(self, shape: Sequence[int], speed: float = 1.0, deviations: float = 0.0) -> float:
        """From the beginning of a step to the beginning of the next one; never less than a tenth of its costs.

        Args:
            shape: :class:`Features` of the step, which may be larger than any that was recorded.
            speed: how many times as long every step takes.
            deviations: how far the costs are from the likeliest, in standard deviations of what is known of them.
        """
        cost = sum(cost * count for cost, count in zip(self.costs, shape, strict=True))
        sizes, shapes = self.ratios
        likeliest = cost * sizes.get(size_of(shape), 1.0) * shapes.get(shape_of(shape), 1.0)
        off = deviations * self.deviation(shape) if deviations else 0.0
        return speed * (max(likeliest + off, likeliest / 10) + self.gap)

    def deviation(self, shape: Sequence[int]) -> float:
        """The standard deviation (seconds) of a step's likeliest time, from what is known of the costs."""
        counts = np.asarray(shape, dtype=np.float64)
        return math.sqrt(max(0.0, float(counts @ self.doubt @ counts)))

    def extrapolated(self, rows: Sequence[Row]) -> Extrapolated:
        """The steps that have more decoding requests or prompt tokens than any recorded one."""
        batch, tokens, _ = self.most
        found, features = Extrapolated(), Features()
        for row in rows:
            _, decoding, prompt, *_ = features.of(row)
            if decoding > batch or prompt > tokens:
                found |= Extrapolated(1, decoding if decoding > batch else 0, prompt if prompt > tokens else 0)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": dict(zip(TERMS, self.costs, strict=True)),
            "gap_s": self.gap,
            "noise_floor": self.noise,
            "same_shape_steps": self.twice,
            "median_error": self.error,
            "steps": self.steps,
            "parts": [self.fastest, self.slowest],
        }


@dataclass
class Timed:
    """The model as a replay asks it, step by step."""

    model: StepTime
    speed: float = 1.0
    deviations: float = 0.0
    features: Features = field(default_factory=Features)

    def __call__(self, row: Row) -> float:
        return self.model.seconds(self.features.of(row), self.speed, self.deviations)


@dataclass
class Paced:
    """The time of a step where the server takes it from the model of a device (``pace``), as a replay asks it."""

    pace: Pace
    gap: float = 0.0  # seconds to the next step
    contexts: Contexts = field(default_factory=Contexts)

    def __call__(self, row: Row) -> float:
        work = map(Work, row.tokens, self.contexts.each(row))
        return self.pace.seconds(work) * self.pace.slower + self.gap


def fit(*recorded: Sequence[Row]) -> StepTime:
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
    servers = [(Features(), server) for server in recorded]
    x = np.array([features.of(row) for features, server in servers for row in server], dtype=np.float64)
    y = np.maximum([row.over - row.began for row in rows], 1e-6)  # the log has microseconds
    known = x.copy()
    known[:, 1:][:, x[:, 1:].min(axis=0) == x[:, 1:].max(axis=0)] = 0  # else they would share the cost of a step
    costs, said = _relative(known, y)
    sizes, said = _corrected([size_of(one) for one in x], y, said, TRUST_SIZE)
    shapes, said = _corrected([shape_of(one) for one in x], y, said, TRUST_SHAPE)
    pairs = itertools.chain.from_iterable(itertools.pairwise(server) for server in recorded)
    gaps = [row.began - before.over for before, row in pairs if row.busy]
    noise, twice = _noise(x, y)
    parts = [part for part in np.array_split(np.arange(len(rows)), PARTS) if len(part) >= LEAST_PART]
    ratios = [float(y[part].sum() / said[part].sum()) for part in parts] or [1.0]
    most = x.max(axis=0)
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
        _doubt(x, y, said),
    )


def size_of(features: Sequence[float]) -> int:
    """The tokens of a step with prompts; 0 for one that only decodes."""
    return int(features[1] + features[2]) if features[2] else 0


def shape_of(features: Sequence[float]) -> Shape:
    """The batch shape of a step: its decoding requests, its prompt tokens to the nearest half power of two, and
    whether it makes tokens.
    """
    return int(features[1]), round(2 * math.log2(1 + features[2])), bool(features[4])


def _relative(x: Array, y: Array) -> tuple[Array, Array]:
    """The costs with the smallest relative errors, and what they say of each step; never less than a tenth of it."""
    weights = np.ones(len(y))
    for _ in range(PASSES):
        costs = non_negative(x * weights[:, None], y * weights)
        said = np.maximum(x @ costs, y / 10)
        weights = 1 / said
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


def _corrected(keys: Sequence[Key], y: Array, said: Array, trust: float) -> tuple[dict[Key, float], Array]:
    """By key, how many times ``said`` its steps took: the mean, among ``trust`` of 1.0. And ``said`` so many times."""
    found: dict[Key, list[float]] = defaultdict(list)
    for key, ratio in zip(keys, y / said, strict=True):
        found[key].append(float(ratio))
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
        shapes[int(shape[1]), int(shape[2]), int(shape[3]) // ROUND, *map(int, shape[5:])].append(float(seconds))
    differences = [
        abs(one - middle) / middle
        for same in shapes.values()
        if len(same) > 1
        for middle in [float(np.median(same))]
        for one in same
    ]
    return (float(np.median(differences)) if differences else 0.0), len(differences)
