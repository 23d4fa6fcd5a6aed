"""A stand-in for Triton's own module: import it first where the models' code is imported outside Triton.

It is not in the package's __init__: a test that imports a benchmark has a stand-in of its own.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any


class _Metric:
    """A metric in the place of Triton's that does nothing."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

    def Metric(self, **named: Any) -> _Metric:
        return self

    def set(self, value: float) -> None: ...
    def increment(self, value: float) -> None: ...
    def observe(self, value: float) -> None: ...


def _backend_utils() -> ModuleType:
    """As much of `triton_python_backend_utils` as a unary model needs."""
    made: Any = ModuleType("triton_python_backend_utils")
    _Metric.COUNTER = _Metric.GAUGE = _Metric.HISTOGRAM = 0  # type: ignore[attr-defined]
    made.MetricFamily = _Metric
    made.Logger = SimpleNamespace(**dict.fromkeys(("log_info", "log_warn", "log_error"), lambda text: None))
    made.Tensor = made.InferenceResponse = made.TritonError = SimpleNamespace
    made.Tensor = lambda name, array: (name, array)
    made.InferenceResponse = lambda tensors=(), error=None: tensors
    made.TritonError = made.TritonModelException = RuntimeError
    made.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    return made


sys.modules.setdefault("triton_python_backend_utils", _backend_utils())
