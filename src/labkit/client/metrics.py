"""Triton's own counters, read from ``/metrics`` and made into one row per model."""

from __future__ import annotations

import dataclasses
import http.client
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import LabError
from labkit.fetch import fetch
from labkit.waiting import attempts

IDLE_LOOK_S = 0.05
MOST_PAGE = 4 * 2**20  # bytes of a metrics page; a stack's own has a tenth of a MiB
OWN = "labs_"  # the prefix of our models' metrics (docs/operate/metrics.md)
# NVIDIA's tensorrtllm backend reports its scheduler under these names: gauges of its last iteration
# (tensorrtllm_backend v0.17.0, inflight_batcher_llm/src/custom_metrics_reporter/custom_metrics_reporter.cc).
TRTLLM = "nv_trt_llm_"
TRTLLM_REQUESTS = f"{TRTLLM}request_metrics"


@dataclass(frozen=True)
class Histogram:
    """``buckets`` holds, by upper bound, how many observations were at most that; the last bound is infinite."""

    count: float = 0.0
    sum: float = 0.0
    buckets: Mapping[float, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Where that share of the observations is reached, linear within a bucket (as ``histogram_quantile``).

        Beyond the last finite bound nothing is known: then it is that bound. Without observations it is NaN.
        """
        rank, below, counted = share * self.count, 0.0, 0.0
        for bound, count in sorted(self.buckets.items()):
            if count >= rank and count > counted:
                return below if math.isinf(bound) else below + (bound - below) * (rank - counted) / (count - counted)
            below, counted = bound, count
        return math.nan

    def plus(self, other: Histogram) -> Histogram:
        """The observations of both; they have the same bounds, or one has seen nothing."""
        bounds = {*self.buckets, *other.buckets}
        buckets = {bound: self.buckets.get(bound, 0.0) + other.buckets.get(bound, 0.0) for bound in bounds}
        return Histogram(self.count + other.count, self.sum + other.sum, buckets)

    def since(self, earlier: Histogram) -> Histogram:
        """The observations between the two."""
        buckets = {bound: count - earlier.buckets.get(bound, 0.0) for bound, count in self.buckets.items()}
        return Histogram(self.count - earlier.count, self.sum - earlier.sum, buckets)


@dataclass(frozen=True)
class ModelCounters:
    """Counters of one model, summed over its versions and instances. Durations in microseconds.

    ``inferences`` counts requests times their batch size (nv_inference_count), ``exec_count`` the executions that
    served them (nv_inference_exec_count): their ratio is the mean batch that really formed. ``rejected`` are those of
    ``failed`` that a queue policy turned away. ``canceled`` are not among ``failed``: Triton counts so what a client
    has given up, and the end of each request that a model has rescheduled. ``cache_hits`` were answered from the
    response cache.
    """

    succeeded: float = 0
    failed: float = 0
    rejected: float = 0
    canceled: float = 0
    inferences: float = 0
    exec_count: float = 0
    request_us: float = 0
    queue_us: float = 0
    compute_input_us: float = 0
    compute_infer_us: float = 0
    compute_output_us: float = 0
    pending: float = 0
    cache_hits: float = 0
    cache_misses: float = 0

    @property
    def mean_batch(self) -> float:
        return self.inferences / self.exec_count if self.exec_count else 0.0

    @property
    def compute_us(self) -> float:
        return self.compute_input_us + self.compute_infer_us + self.compute_output_us

    @property
    def queue_ms(self) -> float:
        """Mean time of a request in the queue."""
        return self.queue_us / self.succeeded / 1e3 if self.succeeded else 0.0

    @property
    def compute_ms(self) -> float:
        """Mean time of a request in the model, its inputs and outputs included."""
        return self.compute_us / self.succeeded / 1e3 if self.succeeded else 0.0


FIELDS = {
    "nv_inference_request_success": "succeeded",
    "nv_inference_request_failure": "failed",
    "nv_inference_count": "inferences",
    "nv_inference_exec_count": "exec_count",
    "nv_inference_request_duration_us": "request_us",
    "nv_inference_queue_duration_us": "queue_us",
    "nv_inference_compute_input_duration_us": "compute_input_us",
    "nv_inference_compute_infer_duration_us": "compute_infer_us",
    "nv_inference_compute_output_duration_us": "compute_output_us",
    "nv_inference_pending_request_count": "pending",
    "nv_cache_num_hits_per_model": "cache_hits",
    "nv_cache_num_misses_per_model": "cache_misses",
}


@dataclass(frozen=True)
class Snapshot:
    """All models at one moment; ``own`` and ``histograms`` hold what models count themselves, by (model, metric).

    A metric with a label of its own has one entry for each: ``("m", "labs_step_tokens prefill")``. Models are ours
    (``labs_``) and those of NVIDIA's backend (``nv_trt_llm_``).
    """

    models: Mapping[str, ModelCounters] = dataclasses.field(default_factory=dict)
    own: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    histograms: Mapping[tuple[str, str], Histogram] = dataclasses.field(default_factory=dict)

    def waiting(self, model: str) -> float:
        """How many of its requests wait: by its own count, else by that of Triton's queue.

        Triton counts no request that a model with its own loop has taken; and a model behind Triton's dynamic batcher
        cannot see Triton's queue. NVIDIA's backend counts active requests that are not in the last iteration; some of
        those in it may have ended since.
        """
        own = self.own.get((model, f"{OWN}waiting"))
        if own is not None:
            return own
        active = self.own.get((model, f"{TRTLLM_REQUESTS} active"))
        if active is not None:
            return max(0.0, active - self.own.get((model, f"{TRTLLM_REQUESTS} scheduled"), 0.0))
        return self.models.get(model, ModelCounters()).pending

    def since(self, earlier: Snapshot) -> Snapshot:
        """The counts between two snapshots; gauges (pending, slots, blocks) are those of the later one."""
        models = {}
        for name, now in self.models.items():
            before = earlier.models.get(name, ModelCounters())
            counts = [field.name for field in dataclasses.fields(now) if field.name != "pending"]
            delta = {count: getattr(now, count) - getattr(before, count) for count in counts}
            models[name] = ModelCounters(**delta, pending=now.pending)
        own = dict(self.own)
        for model, name in self.own:
            if name.split()[0].endswith("_total"):
                own[model, name] -= earlier.own.get((model, name), 0.0)
        histograms = {
            key: histogram.since(earlier.histograms.get(key, Histogram())) for key, histogram in self.histograms.items()
        }
        return Snapshot(models, own, histograms)


def parse_metrics(text: str) -> Snapshot:
    """A snapshot from Prometheus's text format."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, dict[str, float]] = {}
    own: dict[tuple[str, str], float] = {}
    histograms: dict[tuple[str, str], dict[str, Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            model = sample.labels.get("model", "")
            # The parser adds "_total" to counters that do not have it.
            name = sample.name if sample.name in FIELDS else sample.name.removesuffix("_total")
            if name in FIELDS:
                row = sums.setdefault(model, {})
                field = "canceled" if sample.labels.get("reason") == "CANCELED" else FIELDS[name]
                row[field] = row.get(field, 0.0) + sample.value
                if sample.labels.get("reason") == "REJECTED":
                    row["rejected"] = row.get("rejected", 0.0) + sample.value
            elif sample.name.startswith((OWN, TRTLLM)):
                labels = sorted(sample.labels.items())
                own_labels = [value for label, value in labels if label not in ("model", "version", "le")]
                if family.type != "histogram":
                    own[model, " ".join([sample.name, *own_labels])] = sample.value
                    continue
                histogram = histograms.setdefault((model, " ".join([family.name, *own_labels])), {"buckets": {}})
                part = sample.name.removeprefix(f"{family.name}_")
                if part == "bucket":
                    histogram["buckets"][float(sample.labels["le"])] = sample.value
                else:  # sum or count
                    histogram[part] = sample.value
    models = {name: ModelCounters(**row) for name, row in sums.items()}
    return Snapshot(models, own, {key: Histogram(**parts) for key, parts in histograms.items()})


def scrape(endpoint: str) -> Snapshot:
    """A snapshot from a server's metrics endpoint (``host:port``), or the sum of several ("a:1,b:2").

    Raises:
        LabError: one of them does not answer.
    """
    return total_snapshot([_read(server, metrics_page(server)) for server in endpoint.split(",")])


def scrape_when_idle(endpoint: str, seconds: float, model: str | None = None) -> Snapshot:
    """A snapshot in which no request (of ``model``, or of all models) is pending, or the last one after ``seconds``.

    Triton counts a request a moment after its last response. Raises LabError as :func:`scrape` does.
    """
    for _ in attempts(seconds, IDLE_LOOK_S):
        snapshot = scrape(endpoint)
        if not any(row.pending for name, row in snapshot.models.items() if model in (None, name)):
            break
    return snapshot


def _read(endpoint: str, text: str) -> Snapshot:
    try:
        return parse_metrics(text)
    except (ValueError, KeyError, TypeError, IndexError) as error:  # as prometheus_client's parser has it
        why = "its page is not in Prometheus' text format"
        raise LabError(
            f"the metrics endpoint {endpoint} cannot be read", why, "labctl status", code="metrics-unreadable"
        ) from error


def total_snapshot(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The servers of one stack as if they were one."""
    if len(snapshots) == 1:
        return snapshots[0]
    models: dict[str, ModelCounters] = {}
    own: dict[tuple[str, str], float] = {}
    histograms: dict[tuple[str, str], Histogram] = {}
    for snapshot in snapshots:
        for name, more in snapshot.models.items():
            before = models.get(name, ModelCounters())
            names = [field.name for field in dataclasses.fields(more)]
            models[name] = ModelCounters(**{key: getattr(before, key) + getattr(more, key) for key in names})
        for key, value in snapshot.own.items():
            own[key] = own.get(key, 0.0) + value
        for key, histogram in snapshot.histograms.items():
            histograms[key] = histograms.get(key, Histogram()).plus(histogram)
    return Snapshot(models, own, histograms)


def metrics_page(endpoint: str, timeout: float = 5.0) -> str:
    """The text of one server's metrics page. Raises LabError if it does not answer."""
    try:
        status, body = fetch(endpoint, "GET", "/metrics", timeout=timeout, most=MOST_PAGE)
    except (OSError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise LabError(
            f"the metrics endpoint {endpoint} does not answer", why, "labctl status", code="metrics-silent"
        ) from error
    if status != 200:
        raise LabError(f"the metrics endpoint {endpoint} answers with status {status}", code="metrics-status")
    return body.decode(errors="replace")
