"""A stepped load: more users with each step, Triton's counters every second, and a warm-up that counts nowhere.

Locust makes the load (:mod:`labkit.client.locust_users`); this module starts its users and keeps the books.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from labkit.client import metrics
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts

SCRAPE_S = 1.0
ANSWER_S, LOOK_S = 60.0, 0.05  # a step without an answer lasts longer
IDLE_S = 60.0  # for the server to work off what its last users asked for
SPAWN_RATE = 100.0  # users/s that are started; more is more than Locust recommends


@dataclass
class Stage:
    """A step of the load: some users for some time.

    ``began`` and ``ended`` (``time.monotonic()`` seconds) bound what counts: the warm-up lies before.
    """

    users: int
    began: float
    ended: float
    counters: metrics.Snapshot  # Triton's counts in between
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies_ms) / (self.ended - self.began)


class Scrape(NamedTuple):
    """Triton's counters so far, at one moment (``time.monotonic()`` seconds) and under a number of users."""

    at: float
    users: int
    counters: metrics.Snapshot


@dataclass
class SteppedLoad:
    """Everything that was measured. Times are ``time.monotonic()`` seconds."""

    stages: list[Stage]
    scrapes: list[Scrape]
    records: list[RequestRecord]

    def counted(self) -> metrics.Snapshot:
        """Triton's counts from before the first request until after the last."""
        return self.scrapes[-1].counters.since(self.scrapes[0].counters)

    def seconds(self, model: str) -> list[dict[str, float]]:
        """One row per second: users, requests/s, latency percentiles, and of ``model`` mean batch and queue time."""
        ends = np.array([record.end for record in self.records])
        latencies = np.array([record.latency_ms for record in self.records])
        zero, rows = self.scrapes[0].at, []
        under_load = self.scrapes[:-1]  # the last one is that of the idle server
        for before, after in itertools.pairwise(under_load):
            answered = latencies[(before.at < ends) & (ends <= after.at)]
            delta = after.counters.since(before.counters).models.get(model, metrics.ModelCounters())
            rows.append(
                {
                    "t": after.at - zero,
                    "users": after.users,
                    "requests_per_second": len(answered) / (after.at - before.at),
                    "p50": float(np.percentile(answered, 50)) if len(answered) else 0.0,
                    "p95": float(np.percentile(answered, 95)) if len(answered) else 0.0,
                    "mean_batch": delta.mean_batch,
                    "queue_ms": delta.queue_ms,
                }
            )
        return rows


def run_stepped_load(
    users: Sequence[type[Any]],
    steps: Sequence[int],
    seconds: float,
    warmup: float,
    endpoint: str,
    tokens: int,
    progress: Callable[[str], None],
) -> SteppedLoad:
    """Load a server with each number of users in turn, without a pause in between.

    Args:
        users: Locust's user classes, in equal shares.
        seconds: how long a step lasts, after ``warmup`` seconds of it that are left out; on a slow machine until the
            first answer comes.
        endpoint: Triton's metrics.
        tokens: output tokens of each request, for the records.

    Raises:
        LabError: a request failed; nothing is averaged.
    """
    import gevent
    from locust.env import Environment

    runner = Environment(user_classes=[*users]).create_local_runner()
    records: list[RequestRecord] = []
    failures: list[str] = []

    def answered(request_type: str, name: str, response_time: float, exception: Any = None, **_: Any) -> None:
        now = time.monotonic()
        if exception is not None:
            failures.append(f"{request_type} {name}: {exception}")
        record = RequestRecord(f"{len(records)}", name, "", {"protocol": request_type}, tokens=tokens)
        record.start, record.end, record.responses = now - response_time / 1e3, now, [(now, "")]
        records.append(record)

    runner.environment.events.request.add_listener(answered)
    load = SteppedLoad([], [Scrape(time.monotonic(), 0, metrics.scrape(endpoint))], records)

    def watch() -> None:
        while True:
            gevent.sleep(SCRAPE_S)
            with contextlib.suppress(LabError):  # a busy server may miss a second: the next row is longer then
                load.scrapes.append(Scrape(time.monotonic(), runner.user_count, metrics.scrape(endpoint)))

    watcher = gevent.spawn(watch)
    try:
        for count in steps:
            progress(f"{count} users")
            runner.start(count, spawn_rate=SPAWN_RATE)
            gevent.sleep(warmup)
            began, before = time.monotonic(), metrics.scrape(endpoint)
            gevent.sleep(seconds)
            for _ in attempts(ANSWER_S, LOOK_S):
                if failures or any(began < record.end for record in records):
                    break
            after, ended = metrics.scrape(endpoint), time.monotonic()
            latencies = [record.latency_ms for record in records if began < record.end <= ended]
            load.stages.append(Stage(count, began, ended, after.since(before), latencies))
    finally:
        watcher.kill()
        runner.quit()
    load.scrapes.append(Scrape(time.monotonic(), 0, metrics.scrape_when_idle(endpoint, IDLE_S)))
    if failures:
        raise LabError(
            f"{len(failures)} of {len(records)} requests failed; nothing is averaged",
            failures[0],
            code="requests-failed",
        )
    if not all(stage.latencies_ms for stage in load.stages):
        raise LabError(
            f"a step of {seconds:g} s and {ANSWER_S:g} s more ended without an answer",
            "",
            f"longer steps: --set step_seconds={2 * (seconds + ANSWER_S):g}",
            code="step-unended",
        )
    return load


def counters(row: metrics.ModelCounters) -> dict[str, float]:
    """A model's counters as they go into a result, with what follows from them."""
    return {
        **dataclasses.asdict(row),
        "mean_batch": row.mean_batch,
        "queue_ms": row.queue_ms,
        "compute_ms": row.compute_ms,
    }
