"""Triton's own counters, read from ``/metrics`` and made into one row per model."""

from __future__ import annotations

import dataclasses
import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field

from labctl.errors import LabError


@dataclass(frozen=True)
class ModelCounters:
    """Counters of one model, summed over its versions and instances. Durations in microseconds.

    ``inferences`` counts requests times their batch size (nv_inference_count), ``exec_count`` the executions that
    served them (nv_inference_exec_count): their ratio is the mean batch that really formed. ``rejected`` are those of
    ``failed`` that a queue policy turned away.
    """

    succeeded: float = 0
    failed: float = 0
    rejected: float = 0
    inferences: float = 0
    exec_count: float = 0
    request_us: float = 0
    queue_us: float = 0
    compute_input_us: float = 0
    compute_infer_us: float = 0
    compute_output_us: float = 0
    pending: float = 0

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
}


@dataclass(frozen=True)
class Snapshot:
    """All models at one moment; ``own`` holds what our models count themselves, by (model, metric)."""

    models: Mapping[str, ModelCounters] = field(default_factory=dict)
    own: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def since(self, earlier: Snapshot) -> Snapshot:
        """What was counted between two snapshots; gauges (pending, slots, blocks) are those of the later one."""
        models = {}
        for name, now in self.models.items():
            before = earlier.models.get(name, ModelCounters())
            delta = {
                f.name: getattr(now, f.name) - getattr(before, f.name)
                for f in dataclasses.fields(now)
                if f.name != "pending"
            }
            models[name] = ModelCounters(**delta, pending=now.pending)
        own = {
            key: value - earlier.own.get(key, 0.0) if key[1].endswith("_total") else value
            for key, value in self.own.items()
        }
        return Snapshot(models, own)


def parse(text: str) -> Snapshot:
    """A snapshot from Prometheus's text format."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, dict[str, float]] = {}
    own: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            model = sample.labels.get("model", "")
            # The parser adds "_total" to counters that do not have it.
            name = sample.name if sample.name in FIELDS else sample.name.removesuffix("_total")
            if name in FIELDS:
                row = sums.setdefault(model, {})
                row[FIELDS[name]] = row.get(FIELDS[name], 0.0) + sample.value
                if sample.labels.get("reason") == "REJECTED":
                    row["rejected"] = row.get("rejected", 0.0) + sample.value
            elif sample.name.startswith("labs_"):
                own[model, sample.name] = sample.value
    return Snapshot({name: ModelCounters(**row) for name, row in sums.items()}, own)


def scrape(endpoint: str, timeout: float = 5.0) -> Snapshot:
    """A snapshot from a server's metrics endpoint (``host:port``). Raises LabError where it does not answer."""
    connection = http.client.HTTPConnection(endpoint, timeout=timeout)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise LabError(f"the metrics endpoint {endpoint} answers with status {response.status}")
        return parse(body.decode())
    except (OSError, http.client.HTTPException) as error:
        raise LabError(f"the metrics endpoint {endpoint} does not answer", str(error), "labctl status") from error
    finally:
        connection.close()
