"""Predictions for recorded requests under other settings, and the smallest setting that meets a target."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from labsched.errors import LabError
from labsched.log.settings import SchedulerSettings
from labsched.own import FILE, scheduler_beside
from labsched.replay.figures import Times, figures, request_times, token_times
from labsched.replay.player import ReplayResult, StepSeconds, change_settings, ended_by_text, replay
from labsched.replay.recording import Arrival, Recording
from labsched.replay.slo import Slo
from labsched.replay.steptime import (
    DEVIATIONS,
    Extrapolated,
    Paced,
    Speeds,
    StepTime,
    Timed,
    nearest_size,
    require_steps,
    step_size,
)
from labsched.scheduler import Scheduler
from labsched.step import Step

ENOUGH = 0.99  # share of requests that must be within the limits
MOST_REPLICAS = 64
MOST_SLOTS = 256  # beyond those recorded
KNEE_STEPS = 7  # halvings of the interval in which the knee is looked for
SEED = 0


@dataclass(frozen=True)
class Prediction:
    """The figures of a replay, and of two more in which steps are as fast and as slow as they may be.

    Those two have the speeds of the recording's fastest and slowest parts, and the costs at both ends of what is known
    of them. What held the machine up did so in all three. ``extrapolated``: the steps that are far from
    every recorded size.
    """

    settings: SchedulerSettings
    figures: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    steps: Sequence[Step]
    arrived: Mapping[str, float]  # when each request came, in the seconds of the steps
    extrapolated: Extrapolated


class Enough(NamedTuple):
    """The smallest number that meets the limits, or the highest rate; None if none up to ``tried`` does."""

    value: float | None
    tried: float
    extrapolated: Extrapolated


class Share(NamedTuple):
    """The share of requests within the limits, the steps whose time was extrapolated, and the most in one batch."""

    good: float
    extrapolated: Extrapolated
    batch: int = 0


class _TooLate(Exception):
    """So many requests have no first token in time that the answer of a replay is known."""


@dataclass
class _Judged:
    """Keep what a plan needs to know of a replay's steps, instead of the steps.

    Attributes:
        came: when each request did that has no token yet, in order of arrival.
        limit_s: for the first token; of more than ``most`` requests that are later :class:`_TooLate` is raised.
        sizes: how many steps there are of each (:func:`step_size`), and ``batch``: the most requests in one.
        ends: when each request had its tokens.
    """

    came: dict[str, float]
    limit_s: float
    most: int
    late: int = 0
    batch: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    ends: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, step: Step) -> None:
        self.sizes[step_size(step)] += 1
        self.batch = max(self.batch, step.batch)
        for name, made in zip(step.ids, step.made, strict=True):
            if made:
                self.ends[name] += [step.over] * made
                self.late += step.over - self.came.pop(name, step.over) > self.limit_s
        while self.came and step.over - next(iter(self.came.values())) > self.limit_s:
            del self.came[next(iter(self.came))]
            self.late += 1
        if self.late > self.most:
            raise _TooLate


@dataclass(frozen=True)
class Predictor:
    """Predicts from one recording.

    Args:
        in_flight: as :class:`Replay` has it.
        replayed: :func:`labsched.replay.player.replay`, or another with its arguments.
        changed: :func:`labsched.replay.player.change_settings`, or another with its arguments.
        strict: refuse steps that are far from every recorded size, instead of marking them.
        tell: is told what is tried.
    """

    recording: Recording
    model: StepTime
    in_flight: int | None = None
    slo: Slo | None = None
    replayed: Callable[..., ReplayResult] = replay
    strict: bool = False
    changed: Callable[[SchedulerSettings, Mapping[str, str]], SchedulerSettings] = change_settings
    tell: Callable[[str], None] = lambda _: None
    _shares: dict[object, Share] = field(init=False, repr=False, default_factory=dict)

    @classmethod
    def of(
        cls,
        recording: Recording,
        in_flight: int | None = None,
        slo: Slo | None = None,
        replayed: Callable[..., ReplayResult] = replay,
        strict: bool = False,
        changed: Callable[[SchedulerSettings, Mapping[str, str]], SchedulerSettings] = change_settings,
        tell: Callable[[str], None] = lambda _: None,
    ) -> Predictor:
        """With a model fitted on the recording. Raises LabError: it has no step."""
        from labsched.replay.fitting import fit

        model = fit(recording.steps, least=1)  # with `pace` its costs are not needed
        return cls(recording, model, in_flight, slo, replayed, strict, changed, tell)

    def recorded(self) -> dict[str, float]:
        """The figures of the recording itself."""
        return figures(self.recording.steps, {a.name: a.at for a in self.recording.arrivals}, self.slo)

    def predict(self, assignments: Mapping[str, str], recording: Recording | None = None) -> Prediction:
        """Predict the figures of the recording's requests, or of another recording's, under other settings.

        Those of the recording meet its machine, as slow at each moment as it was. When another machine is slow is
        not known: it always has the model's speed.

        Raises LabError for settings that cannot be predicted, and if strict for steps far from every recorded size.
        """
        model, steps = self.model, self.recording.steps
        speeds: Speeds | None = None
        held_up: Speeds | None = None
        if recording is None:
            recording = self.recording
            speeds, held_up = Speeds(model, steps), Speeds(model, steps, held_up=True)
        settings = self.changed(recording.settings, assignments)
        likeliest = self._replay(recording, settings, speeds=speeds)
        edges_of = [self._replay(recording, settings, speed, deviations, held_up) for speed, deviations in self._edges]
        predicted, *edges = (figures(done.steps, done.arrived, self.slo) for done in (likeliest, *edges_of))
        return Prediction(
            settings=settings,
            figures=predicted,
            low={name: min(value, *(edge[name] for edge in edges)) for name, value in predicted.items()},
            high={name: max(value, *(edge[name] for edge in edges)) for name, value in predicted.items()},
            steps=likeliest.steps,
            arrived=likeliest.arrived,
            extrapolated=self._extrapolated(settings, Counter(map(step_size, likeliest.steps))),
        )

    @property
    def _edges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The speeds and the standard deviations of the fastest and of the slowest that the machine may be."""
        return (self.model.fastest, -DEVIATIONS), (self.model.slowest, DEVIATIONS)

    def times(self, assignments: Mapping[str, str], replicas: int = 1, edge: int | None = None) -> Times:
        """The times of each request under other settings, in a third of what :meth:`predict` takes.

        Args:
            replicas: that get the requests in turn.
            edge: 0 for the fastest that they may be, 1 for the slowest; None: the likeliest.

        Raises LabError as :meth:`predict` does.
        """
        settings = self.changed(self.recording.settings, assignments)
        speeds = Speeds(self.model, self.recording.steps, held_up=edge is not None)
        speed, deviations = (1.0, 0.0) if edge is None else self._edges[edge]
        every: dict[str, dict[str, float]] = {}
        for number in range(replicas):
            routed = replace(self.recording, arrivals=self.recording.arrivals[number::replicas])
            done = self._replay(routed, settings, speed, deviations, speeds)
            for metric, times in request_times(done.steps, done.arrived).items():
                every[metric] = {**every.get(metric, {}), **times}
        return every

    def _replay(
        self,
        recording: Recording,
        settings: SchedulerSettings,
        speed: float = 1.0,
        deviations: float = 0.0,
        speeds: Speeds | None = None,
        **judged: _Judged,
    ) -> ReplayResult:
        """Replay a recording's requests. ``judged``: as the replay's ``seen``, which sees the steps instead."""
        way = recording.way
        known = ended_by_text(recording.arrivals) if settings.recorded else recording.arrivals
        arrivals = [replace(arrival, at=arrival.at + way) for arrival in known]
        pace = settings.pace
        if not pace:
            require_steps(self.model.steps)
        seconds: StepSeconds = Paced(pace, self.model.gap) if pace else Timed(self.model, speed, deviations, speeds)
        done = self.replayed(replace(recording, arrivals=arrivals), settings, seconds, self.in_flight, **judged)
        return ReplayResult(done.steps, {name: at - way for name, at in done.arrived.items()})

    def _extrapolated(self, settings: SchedulerSettings, sizes: Counter[tuple[int, int]]) -> Extrapolated:
        """The steps whose time is extrapolated. Raises LabError if there are any and this is strict."""
        if settings.pace:
            return Extrapolated()
        larger = self.model.extrapolated(sizes)
        if self.strict and larger.steps:
            raise LabError(
                f"{larger.steps:,} of {sizes.total():,} steps cannot be timed from this recording",
                f"they have {extrapolation_in_words(larger, self.model)}",
                "leave out --strict to extrapolate, or record a run in which steps have such sizes",
                code="prediction-extrapolated",
            )
        return larger

    # -- the smallest that is enough ----------------------------------------------------------------------------------

    def good_share(self, rate: float, replicas: int = 1, assignments: Mapping[str, str] | None = None) -> Share:
        """The share of requests within the limits if ``rate`` come a second, spread in turn over ``replicas``.

        If it is clear before the end that not ENOUGH are within the limits, the share is 0. A request without a token
        is not within them. The same is replayed once.
        """
        settings = self.changed(self.recording.settings, assignments or {})
        asked = rate, replicas, tuple(sorted(settings.words.items()))
        if asked not in self._shares:
            self._shares[asked] = self._share(rate, replicas, settings)
        return self._shares[asked]

    def _share(self, rate: float, replicas: int, settings: SchedulerSettings) -> Share:
        arrivals = at_rate(self.recording.arrivals, rate)
        limits, most = self.slo or Slo(), math.floor((1 - ENOUGH) * len(arrivals))
        limit_s = math.inf if limits.ttft is None or self.in_flight else limits.ttft / 1e3
        bad, batch, extrapolated = 0, 0, Extrapolated()
        for number in range(min(replicas, len(arrivals))):
            routed = arrivals[number::replicas]
            judged = _Judged({arrival.name: arrival.at for arrival in routed}, limit_s, most - bad)
            try:
                done = self._replay(replace(self.recording, arrivals=routed), settings, seen=judged)
            except _TooLate:
                return Share(0.0, extrapolated)
            extrapolated |= self._extrapolated(settings, judged.sizes)
            batch = max(batch, judged.batch)
            ttft, tpot = token_times(judged.ends, done.arrived).values()
            bad += len(routed) - sum(limits.is_met(ms, tpot.get(name, 0.0)) for name, ms in ttft.items())
            if bad > most:
                return Share(0.0, extrapolated)
        return Share(1.0 - bad / len(arrivals), extrapolated, batch)

    def knee(self) -> Enough:
        """The highest rate (requests per second) that one replica serves within the limits, found by halving."""
        most = self._peak()
        low, high = 0.0, most
        extrapolated_at_low = Extrapolated()
        for _ in range(KNEE_STEPS):
            middle = (low + high) / 2
            self.tell(f"{middle:.2f} requests/s")
            share = self.good_share(middle)
            if share.good >= ENOUGH:
                low, extrapolated_at_low = middle, share.extrapolated
            else:
                high = middle
        return Enough(low or None, most, extrapolated_at_low)

    def _peak(self) -> float:
        """Requests per second if all are there from the beginning: no rate above it can be kept up."""
        at_once = [replace(arrival.moved(0.0), follows=False) for arrival in self.recording.arrivals]
        done = self._replay(replace(self.recording, arrivals=at_once), self.recording.settings)
        return 2 * figures(done.steps, done.arrived)["requests_per_s"]

    def slots_enough(self, rate: float) -> Enough:
        """The smallest max_num_sequences that meets the limits at ``rate``. More slots than requests change nothing."""
        settings = self.recording.settings
        most = min(MOST_SLOTS, len(self.recording.arrivals), settings.step_tokens)
        recorded = int(settings.words["max_num_sequences"] or 16)

        def share(slots: int) -> Share:
            self.tell(f"{slots} slots")
            return self.good_share(rate, 1, {"max_num_sequences": str(slots)})

        return self._smallest(recorded, most, share)

    def replicas_enough(self, rate: float) -> Enough:
        """The smallest number of replicas that meets the limits at ``rate``, up to MOST_REPLICAS."""

        def share(replicas: int) -> Share:
            self.tell(f"{replicas} replica{'s' if replicas > 1 else ''}")
            return self.good_share(rate, replicas)._replace(batch=replicas)

        return self._smallest(1, min(MOST_REPLICAS, len(self.recording.arrivals)), share)

    def _smallest(self, first: int, most: int, share_of: Callable[[int], Share]) -> Enough:
        """The smallest number with which enough requests are within the limits, by doubling and then by halving.

        If fewer were ever in use, as many are tried next.

        Args:
            first: is tried first.
        """
        low, number = 0, min(first, most)
        high: int | None = None
        every, at_high = Extrapolated(), Extrapolated()
        while high is None or high - low > 1:
            share = share_of(number)
            every |= share.extrapolated
            if share.good >= ENOUGH:
                high, at_high = number, share.extrapolated
                number = min((low + high) // 2, max(share.batch, low + 1))
                continue
            low = number
            if low == most:
                return Enough(None, most, every)
            number = min(2 * number, most) if high is None else (low + high) // 2
        return Enough(high, high, at_high)


def extrapolation_in_words(larger: Extrapolated, model: StepTime) -> str:
    """The quantities of such steps that are far from every recorded one, in words."""
    parts = []
    for number, sizes, what in (
        (larger.decoding, model.sizes.decoding, "decoding requests"),
        (larger.prompt, model.sizes.prompt, "prompt tokens"),
    ):
        if number:
            nearest = nearest_size(sizes, number)
            parts.append(
                f"up to {number:,} {what} ({f'the nearest recorded: {nearest:,}' if nearest else 'none recorded'})"
            )
    return " and ".join(parts)


def own_scheduler(file: Path) -> type[Scheduler]:
    """The learner's class in a ``scheduler.py``. Raises LabError if there is none."""
    if file.name != FILE:
        raise LabError(
            f"{file} is not a {FILE}",
            f"the file beside model.py is called {FILE}",
            f"mv {file} {FILE}",
            code="scheduler-file-name",
        )
    try:
        return scheduler_beside(file.parent)
    except Exception as error:  # the learner's own code is executed
        raise LabError(
            f"{file} cannot be used",
            f"{type(error).__name__}: {error}",
            f"correct {file}",
            code="scheduler-file-invalid",
        ) from error


def at_rate(arrivals: Sequence[Arrival], rate: float) -> list[Arrival]:
    """The same requests with random gaps (Poisson arrivals, seed 0), ``rate`` per second."""
    rng, now = random.Random(SEED), 0.0
    spread = []
    for arrival in arrivals:
        spread.append(replace(arrival.moved(now), follows=False))
        now += rng.expovariate(rate)
    return spread
