"""Recordings of two replicas' metrics, counted second by second: healthy ones, and ones in which something breaks.

The series are those of a real metrics page. What moves in them is counted here, from requests that come at random.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.promql.samples import Recording

SCRAPE_S, LENGTH_S = 15, 1800  # seconds between two scrapes; of a recording
SERVED = 8  # requests that a replica can serve in a second
DAY, NIGHT = 3.0, 0.1  # requests per second to each replica
REPLICAS = 2
# A line of a page, and a label in it. prometheus_client's parser would append "_total" to Triton's counters.
LINE, LABEL = re.compile(r"^(\w+)\{(.*)\} \S+$", re.MULTILINE), re.compile(r'(\w+)="([^"]*)"')


@dataclass
class Replica:
    """What a replica has counted since its server came up, by the names of the metrics."""

    up: bool = True
    dead: bool = False  # the model's process: each request fails
    waiting: int = 0
    counted: dict[str, float] = field(default_factory=dict)

    def count(self, name: str, by: float) -> None:
        self.counted[name] = self.counted.get(name, 0.0) + float(by)

    def second(self, arrivals: int, failing: int) -> None:
        """One second: the requests that arrive in it, and how many of them fail."""
        if not self.up:
            return
        if self.dead:
            failing, arrivals = arrivals + self.waiting, 0
            self.waiting = 0
        self.count("nv_inference_request_failure", failing)
        self.waiting += max(0, arrivals - failing)
        done = min(self.waiting, SERVED)
        self.waiting -= done
        for name in ("nv_inference_request_success", "nv_inference_count"):
            self.count(name, done)
        self.count("nv_inference_exec_count", bool(done))
        self.count("nv_inference_compute_infer_duration_us", 900_000 * bool(done))
        self.count("nv_inference_queue_duration_us", 1e6 * self.waiting)
        self.count("nv_inference_request_duration_us", 900_000 * bool(done) + 1e6 * self.waiting)
        self.counted["nv_inference_pending_request_count"] = float(self.waiting)

    def restart(self) -> None:
        self.counted, self.waiting, self.up = {}, 0, True


class Moment(NamedTuple):
    """What happens in a second of a story: requests per second to each replica, and the share of them that fail."""

    rate: float = DAY
    failing: float = 0.0


# Is called each second: with the seconds since the event (below 0: before it), the replicas, and a size from 0 to 1.
Story = Callable[[float, list[Replica], float], Moment]


@dataclass(frozen=True)
class Outage:
    """One recording. ``since``: the second at which something happens; ``back``: when a server was first seen again."""

    recording: Recording
    since: float
    back: float


def quiet(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """Nothing is asked for ten minutes."""
    return Moment(0.0 if 0 <= seconds < 600 else NIGHT)


def restart(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """A server is stopped, and is back within 35 s; its counters begin at zero."""
    if 0 <= seconds < 20 + 15 * size:
        replicas[0].up = False
    elif seconds >= 0 and not replicas[0].up:
        replicas[0].restart()
    return Moment()


def burst(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """Five times the requests for 20 s: the queue is gone within a minute."""
    return Moment(DAY * (5 if 0 <= seconds < 15 + 5 * size else 1))


def strays(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """Of hundreds of requests one or two fail."""
    return Moment(failing=0.005 + 0.01 * size if seconds >= 0 else 0.0)


def busy(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """The server keeps up with many requests."""
    return Moment(SERVED * (0.8 + 0.05 * size) if seconds >= 0 else DAY)


def overload(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """More requests come than can be served, until the end."""
    return Moment(SERVED * (1.3 + 0.4 * size) if seconds >= 0 else DAY)


def down(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """A server is gone."""
    replicas[0].up = seconds < 0
    return Moment()


def dead(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """The process of a model has died: each request to it fails, and nothing waits."""
    replicas[0].dead = seconds >= 0
    return Moment()


def dead_at_night(seconds: float, replicas: list[Replica], size: float) -> Moment:
    """The same while hardly anything is asked."""
    replicas[0].dead = seconds >= 0
    return Moment(NIGHT)


HEALTHY = {"a quiet night": quiet, "a restart": restart, "a burst": burst, "stray failures": strays, "a busy day": busy}
SICK = {
    "overload": overload,
    "a server is gone": down,
    "a dead process": dead,
    "a dead process at night": dead_at_night,
}


def record(page: str, model: str, story: Story, rng: random.Random) -> Outage:
    """Play a story.

    Args:
        page: a metrics page, whose series of the model the replicas have; ``up`` comes to these, as from Prometheus.
    """
    parsed = [(name, dict(LABEL.findall(labels))) for name, labels in LINE.findall(page)]
    lines = [(name, labels) for name, labels in parsed if labels.get("model") == model]
    replicas = [Replica() for _ in range(REPLICAS)]
    for replica in replicas:  # it has served for a while
        for name, _ in lines:
            if "pending" not in name:
                replica.count(name, rng.randint(20_000, 90_000))
    names = [f"triton-{number}:8002" for number in rng.sample(range(1, 10), REPLICAS)]
    offsets = [rng.randint(1, SCRAPE_S - 1) for _ in replicas]
    since, size = rng.uniform(0.3, 0.5) * LENGTH_S, rng.random()
    recording, back = Recording(), since
    seen: set[int] = set()
    for second in range(LENGTH_S):
        moment = story(second - since, replicas, size)
        for number, replica in enumerate(replicas):
            arrivals = _poisson(moment.rate, rng)
            replica.second(arrivals, sum(rng.random() < moment.failing for _ in range(arrivals)))
            if second % SCRAPE_S == offsets[number]:
                if replica.up and number not in seen and second > since:
                    back = float(second)
                target = {"job": "triton", "instance": names[number]}
                recording.add("up", target, second, float(replica.up))
                if replica.up or number in seen:
                    for name, labels in lines:
                        recording.add(name, labels | target, second, _value(name, labels, replica))
                (seen.add if replica.up else seen.discard)(number)
    return Outage(recording, since, back)


def _value(name: str, labels: Mapping[str, str], replica: Replica) -> float | None:
    """What a series shows: all failures are the backend's; None when the server does not answer."""
    if not replica.up:
        return None
    if labels.get("reason", "BACKEND") != "BACKEND":
        return 0.0
    return replica.counted.get(name, 0.0)


def _poisson(mean: float, rng: random.Random) -> int:
    """How many requests come in a second."""
    count, time = 0, rng.expovariate(mean) if mean else 1.0
    while time < 1.0:
        count, time = count + 1, time + rng.expovariate(mean)
    return count
