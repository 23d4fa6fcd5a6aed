"""A scheduler's metrics on Triton's /metrics page: `labs_<name>`, labelled with the model's name.

One naming scheme (docs/operate/metrics.md): a histogram or gauge is named for what it holds, with its unit where it has
one (`_seconds`); a counter ends in `_total`.
"""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from labserve.observe.tracing import Tracer

MOST_OBSERVATIONS = 16  # of one histogram in a flush: each is a message, and what is more is thinned out evenly
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
POWERS = tuple(float(2**n) for n in range(8))
TOKENS = tuple(float(2**n) for n in range(13))


class Shown(NamedTuple):
    """A metric. With `buckets` it is a histogram, with a name in _total a counter, else a gauge.

    `label` is a label beside the model's name; the values are then a mapping by label, such as `{"prefill": 12}`.
    """

    help: str
    buckets: tuple[float, ...] = ()
    label: str = ""


#: Every metric that a model of ours may have; a model shows the metrics that apply to it.
METRICS = {
    "slots": Shown("Requests that may run at a time"),
    "running": Shown("Requests that hold a slot"),
    "waiting": Shown("Requests that wait inside the model"),
    "kv_blocks": Shown("KV cache blocks there are"),
    "kv_blocks_used": Shown("KV cache blocks occupied or promised"),
    "kv_usage": Shown("Share of the KV blocks in use, or of the slots where there are no blocks: 0 to 1"),
    "steps_total": Shown("Steps, each a token for every request that decodes"),
    "tokens_total": Shown("Tokens generated"),
    "admissions_total": Shown("Requests admitted to the batch"),
    "preemptions_total": Shown("Requests evicted from the batch, to be computed again"),
    "waiting_of": Shown("Requests that wait inside the model, by their tenant", label="tenant"),
    "cached_tokens_total": Shown("Tokens of prompts whose keys and values were there already"),
    "moved_bytes_total": Shown("Bytes of keys and values handed over between servers", label="direction"),
    "guessed_tokens_total": Shown("Tokens that were guessed and checked", label="outcome"),
    "slo_requests_total": Shown("Requests that were answered or failed, where there are limits", label="class"),
    "slo_good_total": Shown("Requests answered within the limits", label="class"),
    "batch_size": Shown("Requests in a step", POWERS),
    "step_tokens": Shown("Tokens computed in a step: of prompts, and one for each that decodes", TOKENS, "phase"),
    "time_to_first_token_seconds": Shown("From a request's arrival in the model to its first token", SECONDS),
    "inter_token_latency_seconds": Shown("Between two tokens of a request", SECONDS),
}

Value = float | Mapping[str, float]
USAGE = ("kv_blocks_used", "kv_blocks"), ("running", "slots")  # the first that a model has
#: Goodput's limits, in the environment's LABS_SLO as labctl writes them: "ttft<500ms,tpot<60ms". Without it nothing is
#: counted.
LIMIT = re.compile(r"(ttft|tpot)<([0-9.]+)ms")
ANSWERED, FAILED = ("length", "stop"), "failed"  # why a request ended that has its whole answer, or an error
MOST_CLASSES, LONGEST = 32, 64  # of names that /metrics has: a name is the client's, and each makes a metric
OTHERS, USUAL = "others", "default"


@dataclass(slots=True)
class Life:
    """A request that is here: when it came, and its first and last tokens (None: it has none), in monotonic seconds.

    `kind` is its class for goodput, and `trace` the context of its client's trace; None: it is not traced.
    """

    arrived: float
    kind: str = USUAL
    trace: str | None = None
    first: float | None = None
    latest: float | None = None
    tokens: int = 0

    def within(self, limits: Mapping[str, float]) -> bool:
        """Whether its times, in ms, meet the limits. The TPOT of an answer of one token is 0."""
        if self.first is None or self.latest is None:
            return False
        times = {
            "ttft": 1e3 * (self.first - self.arrived),
            "tpot": 1e3 * (self.latest - self.first) / max(1, self.tokens - 1),
        }
        return all(times[name] <= limit for name, limit in limits.items())


class Gauges:
    """The metrics of one model: `Gauges("iterative-gpt2", slots=8, running=0, tokens_total=0)`.

    A message to the server and back takes 70 us, and wakes a thread of the server on processors where the next step
    computes. So values are kept here, and `flush` hands on what changed. All of it belongs to one thread, the writer's
    (labserve/observe/recorder.py) from the first request on.
    """

    def __init__(self, model: str, **first: Value) -> None:
        self._model = model
        self._families: dict[str, Any] = {}  # a metric lives as long as its family's Python object
        self._metrics: dict[tuple[str, str], Any] = {}
        self._values: dict[tuple[str, str], float] = {}  # gauges to be set, counters to be added
        self._observed: dict[tuple[str, str], list[float]] = {}
        self._shown: dict[tuple[str, str], float] = {}  # gauges as the server has them
        self._usage = next(((used, first[whole]) for used, whole in USAGE if first.get(whole)), None)
        self._lives: dict[str, Life] = {}  # by the names of live requests
        self._limits = {name: float(limit) for name, limit in LIMIT.findall(os.environ.get("LABS_SLO", ""))}
        self._classes: set[str] = set()
        self._tracer = Tracer(model) if os.environ.get("LABS_TRACE") else None
        self.update(**first)
        self.flush()

    def update(self, **values: Value) -> None:
        """Set gauges to their new values, add to counters, observe a value of a histogram."""
        for name, new in values.items():
            for label, value in new.items() if isinstance(new, Mapping) else (("", new),):
                self._take(name, label, value)
        if self._usage and self._usage[0] in values:
            used, whole = self._usage
            self._take("kv_usage", "", values[used] / whole)  # type: ignore[operator]

    def life(self, request: Any, at: float) -> Life:
        """Note what Triton's `request` has to say about where it comes from, at its arrival (monotonic seconds)."""
        return Life(at, self._class_of(request), self._tracer.context(request) if self._tracer else None)

    def _class_of(self, request: Any) -> str:
        """The class of a Triton request: its parameter `tenant`, else its `request_priority`."""
        if not self._limits:
            return USUAL
        given: dict[str, Any] = {}
        with suppress(Exception):  # an older Triton has no parameters; what is wrong with them is the model's affair
            given = json.loads(request.parameters() or "{}")
        priority = given.get("request_priority")
        name = str(given.get("tenant") or (f"priority {priority}" if priority else USUAL))[:LONGEST]
        if name not in self._classes and len(self._classes) >= MOST_CLASSES:
            return OTHERS
        self._classes.add(name)
        return name

    def arrived(self, name: str, life: Life) -> None:
        """A request has come, under the name that `step` will use for it."""
        self._lives[name] = life

    def gone(self, name: str, why: str | None = None) -> None:
        """A request has left, and why, in the words of the step log; harmless when it had left before.

        A request that its client gave up counts for goodput on neither side.
        """
        life = self._lives.pop(name, None)
        if life and self._limits and why in (*ANSWERED, FAILED):
            good = why != FAILED and life.within(self._limits)
            self.update(slo_requests_total={life.kind: 1}, slo_good_total={life.kind: int(good)})
        if life and self._tracer:
            self._tracer.end(name, life.trace, life.arrived, life.first, life.tokens)

    def step(
        self, requests: Sequence[str], phase: str, tokens: Sequence[int], made: Sequence[int], over: float | None = None
    ) -> None:
        """A step has ended.

        Args:
            requests: the names of those in it.
            phase: a letter for each: "p" its prompt was computed, "d" it decodes.
            tokens: how many were computed for each.
            made: how many new ones each of them got.
            over: when it ended, in monotonic seconds; else it is now.
        """
        now = time.monotonic() if over is None else over
        prefill = 0
        if "p" in phase:
            prefill = sum(count for letter, count in zip(phase, tokens, strict=True) if letter == "p")
        first, later = [], []  # seconds that a first token took, and one after another
        for life, count in zip(map(self._lives.get, requests), made, strict=True):
            if count and life:
                if life.latest is not None:
                    later.append(now - life.latest)
                else:
                    first.append(now - life.arrived)
                    life.first = now
                life.latest = now
                life.tokens += count
        self._take("steps_total", "", 1)
        self._take("tokens_total", "", sum(made))
        self._take("batch_size", "", len(requests))
        for part, count in (("prefill", prefill), ("decode", sum(tokens) - prefill)):
            if count:
                self._take("step_tokens", part, count)
        for name, seconds in (("time_to_first_token_seconds", first), ("inter_token_latency_seconds", later)):
            if seconds:
                self._observed.setdefault((name, ""), []).extend(seconds)

    def _take(self, name: str, label: str, value: float) -> None:
        if METRICS[name].buckets:
            self._observed.setdefault((name, label), []).append(value)
        else:
            before = self._values.get((name, label), 0.0) if name.endswith("_total") else 0.0
            self._values[name, label] = before + value

    def flush(self) -> None:
        """Send the server what is new."""
        values, self._values = self._values, {}
        observed, self._observed = self._observed, {}
        try:
            while values:
                (name, label), value = next(iter(values.items()))
                if name.endswith("_total"):
                    if value or (name, label) not in self._metrics:
                        self._metric(name, label).increment(value)
                elif self._shown.get((name, label)) != value:
                    self._metric(name, label).set(value)
                    self._shown[name, label] = value
                values.pop((name, label))
            for (name, label), observations in observed.items():
                metric = self._metric(name, label)
                for value in thin_out(observations):
                    metric.observe(value)
        except Exception:  # keep the values that the server did not get for the next time
            for (name, label), value in values.items():
                if name.endswith("_total") or (name, label) not in self._values:
                    self._take(name, label, value)
            raise

    def _metric(self, name: str, label: str) -> Any:
        if (name, label) not in self._metrics:
            shown = METRICS[name]
            if name not in self._families:
                self._families[name] = pb_utils.MetricFamily(
                    name=f"labs_{name}", description=shown.help, kind=_kind(name, shown)
                )
            labels = {"model": self._model}
            if shown.label:
                labels[shown.label] = label
            buckets = {"buckets": list(shown.buckets)} if shown.buckets else {}
            self._metrics[name, label] = self._families[name].Metric(labels=labels, **buckets)
        return self._metrics[name, label]

    def close(self) -> None:
        """Hand on what is left; the model is being unloaded."""
        with suppress(Exception):  # a server on its way down takes nothing any more
            self.flush()
        if self._tracer:
            self._tracer.close()


def _kind(name: str, shown: Shown) -> Any:
    """Triton's kind of a metric."""
    if shown.buckets:
        return pb_utils.MetricFamily.HISTOGRAM
    return pb_utils.MetricFamily.COUNTER if name.endswith("_total") else pb_utils.MetricFamily.GAUGE


def thin_out(values: Sequence[float], most: int = MOST_OBSERVATIONS) -> Sequence[float]:
    """At most `most` of the values, taken evenly."""
    if len(values) <= most:
        return values
    return [values[index * len(values) // most] for index in range(most)]
