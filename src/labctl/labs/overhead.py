"""Where the time goes between an engine alone and the same engine served: an account that adds up to the second."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from labsched.step import Step

#: Every part of a run's time, and what it is called.
PARTS = {
    "before": "preprocessing, before the first step",
    "queue": "queue, before the first step",
    "engine": "the engine's steps",
    "scheduling": "scheduling, answering and recording in them",
    "idle": "idle engine between two steps",
    "after": "postprocessing, after the last step",
    "wire": "wire and client",
}


@dataclass(frozen=True)
class OverheadAccount:
    """One run of a workload: its seconds by part (they add up to ``seconds``), and how many steps it took."""

    parts: Mapping[str, float]
    steps: float

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def step_ms(self) -> float:
        """Mean milliseconds that the engine computes for a step."""
        return self.parts["engine"] / self.steps * 1e3

    @property
    def scheduling_share(self) -> float:
        """Scheduling, answering and recording over all of a step."""
        return self.parts["scheduling"] / (self.parts["engine"] + self.parts["scheduling"])

    @property
    def idle_ms(self) -> float:
        """Mean milliseconds between two steps."""
        return self.parts["idle"] / max(1, self.steps - 1) * 1e3


def served_account(
    began: float, ended: float, steps: Sequence[Step], pre: float, queue: float, post: float
) -> OverheadAccount:
    """The account of a run through the server.

    What lies before the first step and after the last one is seen from outside; of that Triton's counters say how much
    one request needs in each model. While steps are computed, other requests' models cost nothing but the cores.

    Args:
        began, ended: when the first request was sent, and the last one answered; seconds of the steps' clock.
        steps: of the engine's model, in order of time.
        pre, queue, post: seconds of one request, on average: computed before the engine, waiting in Triton's queues,
            computed after the engine.

    Raises:
        LabError: there is no step, or a step does not say how long the engine computed.
    """
    whole, engine = _seconds(steps)
    before, after = max(0.0, steps[0].began - began), max(0.0, ended - steps[-1].over)
    pre = min(pre, before)
    queue = min(queue, before - pre)
    post = min(post, after)
    parts = {
        "before": pre,
        "queue": queue,
        "engine": engine,
        "scheduling": whole - engine,
        "idle": steps[-1].over - steps[0].began - whole,
        "after": post,
        "wire": before - pre - queue + after - post,
    }
    return OverheadAccount(parts, len(steps))


def serverless_account(seconds: float, steps: Sequence[Mapping[str, Any]]) -> OverheadAccount:
    """The account of a run without a server, with its steps as JSON. Raises LabError: they lack the engine's time."""
    whole, engine = _seconds([Step.from_json(step) for step in steps])
    parts = dict.fromkeys(PARTS, 0.0) | {"engine": engine, "scheduling": whole - engine, "idle": seconds - whole}
    return OverheadAccount(parts, len(steps))


def _seconds(steps: Sequence[Step]) -> tuple[float, float]:
    """The seconds of all steps, and how many of them the engine computed."""
    engine_us = [step.engine_us for step in steps if step.engine_us is not None]
    if not steps or len(engine_us) < len(steps):
        raise LabError(
            "the step log does not say how long the engine computed",
            "",
            "LABS_STEP_LOG must not be off",
            code="step-log-off",
        )
    return sum(step.over - step.began for step in steps), sum(engine_us) / 1e6


@dataclass(frozen=True)
class OverheadComparison:
    """Rounds of both, measured in turn."""

    served: Sequence[OverheadAccount]
    alone: Sequence[OverheadAccount]

    @property
    def ratio(self) -> float:
        """Served over alone, in work per second: the median of the rounds."""
        return statistics.median(self.ratios)

    @property
    def ratios(self) -> Sequence[float]:
        """The ratio of each round; how far they are apart is the noise of the machine."""
        return [bare.seconds / through.seconds for through, bare in zip(self.served, self.alone, strict=True)]

    @property
    def means(self) -> tuple[OverheadAccount, OverheadAccount]:
        """The mean of each part, served and alone: means add up where medians do not."""
        return _mean(self.served), _mean(self.alone)

    @property
    def differences(self) -> dict[str, float]:
        """Seconds that each part takes more where it is served, on average."""
        through, bare = self.means
        return {part: through.parts[part] - bare.parts[part] for part in PARTS}

    def sentence(self) -> str:
        """Why it is slower, in one sentence."""
        through, bare = self.means
        lost = self.differences
        most = max(lost, key=lambda part: lost[part])
        more = sum(lost.values())
        begins = f"Served, the work is done at {self.ratio:.2f} of the engine's own speed"
        if len(self.ratios) > 1:
            begins += f" ({min(self.ratios):.2f} to {max(self.ratios):.2f} in {len(self.ratios)} rounds)"
        if more <= 0:
            return f"{begins}: nothing is lost."
        why = PARTS[most]
        if most == "engine":
            why += f", {through.steps:.0f} of {through.step_ms:.1f} ms, alone {bare.steps:.0f} of {bare.step_ms:.1f} ms"
        return f"{begins}; of the {more:.2f} s that it takes longer, {lost[most] / more:.0%} are: {why}."


def _mean(runs: Sequence[OverheadAccount]) -> OverheadAccount:
    parts = {part: statistics.fmean(run.parts[part] for run in runs) for part in PARTS}
    return OverheadAccount(parts, statistics.fmean(run.steps for run in runs))
