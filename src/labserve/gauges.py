"""A scheduler's state on Triton's /metrics page: `labs_<name>`, labelled with the model's name."""

from typing import Any

import triton_python_backend_utils as pb_utils

#: Every number that a model of ours may show. Names that end in _total are counters, the others gauges.
MEANINGS = {
    "slots": "Sequences that may run at a time",
    "slots_used": "Sequences in the batch of the last step, or that hold a slot",
    "waiting_requests": "Requests that wait for a place",
    "kv_blocks": "KV cache blocks there are",
    "kv_blocks_used": "KV cache blocks occupied or promised",
    "steps_total": "Steps, each a token for every sequence in the batch",
    "tokens_total": "Tokens generated",
    "admissions_total": "Requests admitted to the batch",
    "preemptions_total": "Requests evicted from the batch, to be computed again",
}


class Gauges:
    """The numbers of one model: `Gauges("iterative-gpt2", slots=8, slots_used=0, steps_total=0)`."""

    def __init__(self, model: str, **first: int) -> None:
        self._model = model
        self._metrics: dict[str, Any] = {}
        self._families: list[Any] = []  # a metric lives as long as its family's Python object
        self.update(**first)

    def update(self, **values: int) -> None:
        """Set gauges to their new values, add to counters."""
        for name, value in values.items():
            counter = name.endswith("_total")
            if name not in self._metrics:
                kind = pb_utils.MetricFamily.COUNTER if counter else pb_utils.MetricFamily.GAUGE
                family = pb_utils.MetricFamily(name=f"labs_{name}", description=MEANINGS[name], kind=kind)
                self._families.append(family)
                self._metrics[name] = family.Metric(labels={"model": self._model})
            metric = self._metrics[name]
            (metric.increment if counter else metric.set)(value)
