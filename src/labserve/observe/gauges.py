"""A scheduler's metrics on Triton's /metrics page: `labs_<name>`, labelled with the model's name.

One naming scheme (docs/operate/metrics.md): a histogram or gauge is named for what it holds, with its unit where it has
one (`_seconds`); a counter ends in `_total`.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from labserve.observe.goodput import USUAL, GoodputCounter, Life
from labserve.observe.periodic import PeriodicCall
from labserve.observe.tracing import Tracer

FLUSH_S = 0.25  # seconds between two messages to the server
MOST_OBSERVATIONS = 16  # of one histogram in that time: each is a message, and what is more is thinned out evenly
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


class Origin(NamedTuple):
    """A request's class for goodput, and its trace context; "": it is not traced."""

    kind: str = USUAL
    context: str = ""


class Gauges:
    """The metrics of one model: `Gauges("iterative-gpt2", slots=8, running=0, tokens_total=0)`.

    A message to the server and back takes 70 us, which a step need not wait for a dozen times: values are kept here,
    and a thread hands on what changed, four times a second. It ends with `close`, or with this object. Each message
    also wakes a thread here and one of the server, on processors where the next step computes: so they are few.

    New values belong to the thread that holds the lock; what the server has belongs to the one that flushes: the
    maker's, then the publishing thread, then the closer's. Live requests belong to the model's threads.
    """

    def __init__(self, model: str, **first: Value) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._families: dict[str, Any] = {}  # a metric lives as long as its family's Python object
        self._metrics: dict[tuple[str, str], Any] = {}
        self._values: dict[tuple[str, str], float] = {}  # gauges to be set, counters to be added
        self._observed: dict[tuple[str, str], list[float]] = {}
        self._shown: dict[tuple[str, str], float] = {}  # gauges as the server has them
        self._parts: dict[str, float] = {}  # of USAGE
        self._lives: dict[str, Life] = {}  # by the names of live requests
        self._goodput = GoodputCounter()
        self._tracer = Tracer(model)
        self.update(**first)
        self.flush()
        self.publishing = PeriodicCall(FLUSH_S, self.flush)

    def update(self, **values: Value) -> None:
        """Set gauges to their new values, add to counters, observe a value of a histogram."""
        with self._lock:
            for name, new in values.items():
                if isinstance(new, Mapping):
                    for label, value in new.items():
                        self._take(name, label, value)
                else:
                    self._take(name, "", new)
            self._use({name: values[name] for pair in USAGE for name in pair if name in values})

    def origin(self, request: Any) -> Origin:
        """The facts that Triton's `request` has about where it comes from."""
        return Origin(self._goodput.kind(request), self._tracer.context(request))

    def arrived(self, name: str, origin: Origin | None = None, at: float | None = None) -> None:
        """A request has come, under the name that `step` will use for it.

        Args:
            at: monotonic seconds; else it is now.
        """
        origin = origin or Origin()
        self._lives[name] = Life(time.monotonic() if at is None else at, origin.kind)
        self._tracer.begin(name, origin.context)

    def gone(self, request: str, why: str = "") -> None:
        """A request has left, and why, in the words of the step log; harmless when it had left before."""
        if life := self._lives.pop(request, None):
            self.update(**self._goodput.ended(life, why))
        self._tracer.end(request)

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
        computed = {"prefill": prefill, "decode": sum(tokens) - prefill}
        with self._lock:
            self._take("steps_total", "", 1)
            self._take("tokens_total", "", sum(made))
            self._take("batch_size", "", len(requests))
            for part, count in computed.items():
                if count:
                    self._take("step_tokens", part, count)
            first, later = self._take_tokens(requests, made, now)
            for name, seconds in (("time_to_first_token_seconds", first), ("inter_token_latency_seconds", later)):
                if seconds:
                    self._observed.setdefault((name, ""), []).extend(seconds)
        if self._tracer.traces:
            for request, count in zip(requests, made, strict=True):
                self._tracer.token(request, count)

    def _take_tokens(self, requests: Sequence[str], made: Sequence[int], now: float) -> tuple[list[float], list[float]]:
        """Requests have new tokens, all at the same moment: seconds that a first token took, and a later one."""
        first, later = [], []
        for life, count in zip(map(self._lives.get, requests), made, strict=True):
            if count and life:
                if life.latest:
                    later.append(now - life.latest)
                else:
                    first.append(now - life.arrived)
                    life.first = now
                life.latest = now
                life.tokens += count
        return first, later

    def _use(self, parts: Mapping[str, Any]) -> None:
        self._parts |= parts
        used, whole = next((pair for pair in USAGE if self._parts.get(pair[1])), ("", ""))
        if parts and whole:
            self._take("kv_usage", "", self._parts.get(used, 0) / self._parts[whole])

    def _take(self, name: str, label: str, value: float) -> None:
        if METRICS[name].buckets:
            self._observed.setdefault((name, label), []).append(value)
        else:
            before = self._values.get((name, label), 0.0) if name.endswith("_total") else 0.0
            self._values[name, label] = before + value

    def flush(self) -> None:
        """Send the server what is new."""
        with self._lock:
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
        except Exception:
            with self._lock:  # keep the values that the server did not get for the next time
                for (name, label), value in values.items():
                    if name.endswith("_total") or (name, label) not in self._values:
                        self._take(name, label, value)
            raise
        self._tracer.send()

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
        self.publishing.close()
        with suppress(Exception):  # a server on its way down takes nothing any more
            self.flush()


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
