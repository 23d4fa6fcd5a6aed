"""Recordings of two replicas' metrics for `promtool test rules`: five healthy days, and four on which something breaks.

The series are those of a real metrics page. What moves in them is counted here, second by second, from requests that
come at random.
"""

import re

SCRAPE_S, LENGTH_S = 15, 1800  # between two scrapes; of a recording
SERVED = 8  # requests that a replica can serve in a second
DAY, NIGHT = 3.0, 0.1  # requests per second to each replica
REPLICAS = 2
# A line of a page, and a label in it. prometheus_client's parser would append "_total" to Triton's counters.
LINE, LABEL = re.compile(r"^(\w+)\{(.*)\} \S+$", re.MULTILINE), re.compile(r'(\w+)="([^"]*)"')


class Replica:
    """What a replica has counted since its server came up, by the names of the metrics."""

    def __init__(self, counted):
        self.dead = False
        self.begin(counted)

    def begin(self, counted):
        """Its server comes up."""
        self.counted, self.waiting, self.up = counted, 0, True

    def second(self, arrivals, failing):
        """One second: the requests that arrive in it, and how many of them fail. A dead model fails all of them."""
        if not self.up:
            return
        if self.dead:
            failing, arrivals, self.waiting = arrivals + self.waiting, 0, 0
        self.waiting += max(0, arrivals - failing)
        done = min(self.waiting, SERVED)
        self.waiting -= done
        busy_us = 900_000 * bool(done)
        for name, by in {
            "request_failure": failing,
            "request_success": done,
            "count": done,
            "exec_count": bool(done),
            "compute_infer_duration_us": busy_us,
            "queue_duration_us": 1_000_000 * self.waiting,
            "request_duration_us": busy_us + 1_000_000 * self.waiting,
        }.items():
            self.counted[f"nv_inference_{name}"] = self.counted.get(f"nv_inference_{name}", 0) + by
        self.counted["nv_inference_pending_request_count"] = self.waiting

    def value(self, name, labels):
        """What a series shows; all failures are the backend's."""
        return self.counted.get(name, 0) if labels.get("reason", "BACKEND") == "BACKEND" else 0


# A story is called each second: with the seconds since the event (below 0: before it), the replicas, and a size from 0
# to 1. It gives the requests per second to each replica, and the share of them that fail.


def quiet(seconds, replicas, size):
    """Nothing is asked for ten minutes."""
    return (0.0 if 0 <= seconds < 600 else NIGHT), 0.0


def restart(seconds, replicas, size):
    """A server is stopped, and is back within 35 s; its counters begin at zero."""
    if 0 <= seconds < 20 + 15 * size:
        replicas[0].up = False
    elif seconds >= 0 and not replicas[0].up:
        replicas[0].begin({})
    return DAY, 0.0


def burst(seconds, replicas, size):
    """Five times the requests for 20 s: the queue is gone within a minute."""
    return DAY * (5 if 0 <= seconds < 15 + 5 * size else 1), 0.0


def strays(seconds, replicas, size):
    """One or two of hundreds of requests fail."""
    return DAY, (0.005 + 0.01 * size if seconds >= 0 else 0.0)


def busy(seconds, replicas, size):
    """The server keeps up with many requests."""
    return (SERVED * (0.8 + 0.05 * size) if seconds >= 0 else DAY), 0.0


def overload(seconds, replicas, size):
    """More requests come than can be served, until the end."""
    return (SERVED * (1.3 + 0.4 * size) if seconds >= 0 else DAY), 0.0


def down(seconds, replicas, size):
    """A server is gone."""
    replicas[0].up = seconds < 0
    return DAY, 0.0


def dead(seconds, replicas, size):
    """The process of a model has died: each request to it fails, and nothing waits."""
    replicas[0].dead = seconds >= 0
    return DAY, 0.0


def dead_at_night(seconds, replicas, size):
    """The same while hardly anything is asked."""
    replicas[0].dead = seconds >= 0
    return NIGHT, 0.0


HEALTHY = {"a quiet night": quiet, "a restart": restart, "a burst": burst, "stray failures": strays, "a busy day": busy}
SICK = {
    "overload": overload,
    "a server is gone": down,
    "a dead process": dead,
    "a dead process at night": dead_at_night,
}


def series_of(page, model):
    """The series of a model on a metrics page: names and labels."""
    found = [(name, dict(LABEL.findall(labels))) for name, labels in LINE.findall(page)]
    return [(name, labels) for name, labels in found if labels.get("model") == model]


def record(series, story, rng):
    """Play a story.

    Returns the values of each series at each scrape, in promtool's notation and with `up` among them; the second at
    which something happens; and the one at which a server that had gone was scraped again (or the same).
    """
    counters = [name for name, _ in series if "pending" not in name]
    replicas = [Replica({name: rng.randint(20_000, 90_000) for name in counters}) for _ in range(REPLICAS)]
    targets = [{"job": "triton", "instance": f"triton-{number}:8002"} for number in rng.sample(range(1, 10), REPLICAS)]
    since, size = rng.uniform(0.3, 0.5) * LENGTH_S, rng.random()
    values, seen, back = {}, [True] * REPLICAS, since
    for second in range(LENGTH_S):
        rate, failing = story(second - since, replicas, size)
        for number, (replica, target) in enumerate(zip(replicas, targets, strict=True)):
            arrivals = poisson(rate, rng)
            replica.second(arrivals, sum(rng.random() < failing for _ in range(arrivals)))
            if second % SCRAPE_S:
                continue
            gone = "stale" if seen[number] else "_"  # Prometheus ends the series of a server that does not answer
            if replica.up and not seen[number]:
                back = second
            seen[number] = replica.up
            values.setdefault(key("up", target), []).append(int(replica.up))
            for name, labels in series:
                value = replica.value(name, labels) if replica.up else gone
                values.setdefault(key(name, labels | target), []).append(value)
    return {name: " ".join(map(str, listed)) for name, listed in values.items()}, since, back


def key(name, labels):
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"


def poisson(mean, rng):
    """How many requests come in a second."""
    count, time = 0, rng.expovariate(mean) if mean else 1.0
    while time < 1.0:
        count, time = count + 1, time + rng.expovariate(mean)
    return count
