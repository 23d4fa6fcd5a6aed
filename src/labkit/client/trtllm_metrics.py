"""The counts of NVIDIA's tensorrtllm backend during a load: engine steps, batches, KV blocks, paused requests.

Its metrics are gauges of one iteration, so they are read many times a second. Names and meaning are upstream's:
tensorrtllm_backend, inflight_batcher_llm/src, custom_metrics_reporter.cc and WaitForStats of model_instance_state.cc,
v0.17.0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from labkit.client import metrics
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts

LOOK_S = 0.01  # as often as the backend reports: stats_check_period_ms in labbuild/release.py
SETTLE_S, PATIENCE_S = 0.3, 5.0
ACTIVE, SCHEDULED, PAUSED = "request active", "request scheduled", "inflight_batcher paused_requests"
USED, BLOCKS = "kv_cache_block used", "kv_cache_block max"
MADE, EMPTY = "v1 total_generation_tokens", "v1 empty_generation_slots"
ITERATION = "general iteration_counter"


@dataclass(frozen=True)
class Sample:
    """The gauges at one moment (time.monotonic() seconds), by group and kind: ``"request active"``."""

    at: float
    gauges: Mapping[str, float]


def parse_trtllm_gauges(page: str, model: str) -> dict[str, float]:
    """The backend's gauges of one model on a metrics page; nothing where its backend is another one."""
    # The page is read many times a second: only the backend's few lines of it are parsed.
    lines = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(metrics.TRTLLM))
    return {
        name.removeprefix(metrics.TRTLLM).replace("_metrics", ""): value
        for (owner, name), value in metrics.parse_metrics(lines).own.items()
        if owner == model
    }


class Watch:
    """Reads a server's metrics page in a thread of its own, for the time of a block and until the engine is idle."""

    def __init__(self, endpoint: str, model: str) -> None:
        self.samples: list[Sample] = []
        self._endpoint, self._model = endpoint, model
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="trtllm-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        left = time.monotonic()
        for _ in attempts(PATIENCE_S, LOOK_S):
            last = self.samples[-1] if self.samples else None
            idle = last is not None and last.at > left + SETTLE_S and not last.gauges.get(ACTIVE)
            if idle or not self._thread.is_alive():
                break
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._over.wait(LOOK_S):
            at = time.monotonic()
            try:
                page = metrics.metrics_page(self._endpoint)
            except LabError:
                continue  # one that does not answer has no numbers; the load's own client says what is wrong
            self.samples.append(Sample(at, parse_trtllm_gauges(page, self._model)))

    def counted(self, records: Sequence[RequestRecord]) -> dict[str, float]:
        """The backend's figures while these requests were answered."""
        return scheduling_figures(self.samples, min(record.start for record in records))


def scheduling_figures(samples: Sequence[Sample], since: float) -> dict[str, float]:
    """Lab 05's figures of scheduling, from the iterations after ``since``; nothing where the backend has no metrics.

    Iterations are counted by the backend. What happened in one is known where a sample fell into it:
    ``iterations_seen`` says how many. So ``preemptions`` is a lower bound, and exact where all were seen. An iteration
    of V1 is a whole batch, of as many steps as its longest answer has tokens; V1 never evicts.
    """
    counted = [sample for sample in samples if ITERATION in sample.gauges]
    before = [sample.gauges[ITERATION] for sample in counted if sample.at < since]
    if not before or counted[-1].gauges[ITERATION] <= before[-1]:
        return {}
    first, last = before[-1], counted[-1].gauges[ITERATION]
    iterations = last - first
    # The counter is the last gauge that an iteration sets, so its first sample has none of the next one's.
    seen: dict[float, Mapping[str, float]] = {}
    for sample in counted:
        if sample.gauges[ITERATION] > first:
            seen.setdefault(sample.gauges[ITERATION], sample.gauges)
    batches = [gauges for gauges in seen.values() if gauges.get(SCHEDULED)]
    if not batches:
        return {}
    figures = {
        "max_batch": max(gauges[SCHEDULED] for gauges in batches),
        "max_kv_blocks_used": max(gauges.get(USED, 0.0) for gauges in seen.values()),
        "kv_blocks": max(gauges.get(BLOCKS, 0.0) for gauges in seen.values()),
        "iterations": iterations,
        "iterations_seen": float(len(seen)),
    }
    if all(MADE in gauges for gauges in batches):
        if len(seen) < iterations:
            return figures
        steps = sum((gauges[MADE] + gauges[EMPTY]) / gauges[SCHEDULED] for gauges in batches)
        made = sum(gauges[MADE] for gauges in batches)
        return {"steps": steps, "mean_batch": made / steps, **figures, "preemptions": 0.0}
    mean = sum(gauges[SCHEDULED] for gauges in batches) / len(batches)
    figures = {"steps": iterations, "mean_batch": mean, **figures}
    if all(PAUSED in gauges for gauges in batches):
        figures["preemptions"] = sum(gauges[PAUSED] for gauges in seen.values())
    return figures
