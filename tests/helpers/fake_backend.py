"""Triton's python backend, as much of it as our models use: they run here as they are, without a server."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from checkout import ROOT
from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

REPOS = ROOT / "model_repos"
START, END, RESCHEDULE, FINAL = 1, 2, 2, 1


class Tensor:
    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._array


class TritonError:
    def __init__(self, message: str) -> None:
        self._message = message

    def message(self) -> str:
        return self._message


class Response:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self.error = error.message() if error else ""
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}


class Request:
    """``responses`` and ``final`` are what was answered, ``flags_out`` how it was given back."""

    def __init__(
        self, inputs: dict[str, Any], parameters: str = "", id: str = "", correlation: int = 0, flags: int = 0
    ) -> None:
        self._inputs = {name: np.asarray(value) for name, value in inputs.items()}
        self._parameters, self._id, self._correlation, self._flags = parameters, id, correlation, flags
        self.responses: list[Response] = []
        self.final = self.cancelled = False
        self.flags_out = 0
        self.when_final: Callable[[], None] = lambda: None

    def input(self, name: str) -> Tensor | None:
        return Tensor(name, self._inputs[name]) if name in self._inputs else None

    def parameters(self) -> str:
        return self._parameters

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int:
        return self._correlation

    def flags(self) -> int:
        return self._flags

    def is_cancelled(self) -> bool:
        return self.cancelled

    def set_release_flags(self, flags: int) -> None:
        self.flags_out = flags

    def get_response_sender(self) -> Request:
        return self

    def send(self, response: Response, flags: int = 0) -> None:
        assert not self.final, "a response after the final one"
        self.responses.append(response)
        self.final = bool(flags & FINAL)
        if self.final:
            self.when_final()

    @property
    def error(self) -> str:
        return next((response.error for response in self.responses if response.error), "")


class Metric:
    """``total`` is a gauge's value or a counter's sum; ``observed`` is what a histogram was told."""

    def __init__(self, kind: str) -> None:
        self.kind, self.total = kind, 0.0
        self.observed: list[float] = []

    def increment(self, value: float) -> None:
        assert self.kind == "counter" and value >= 0
        self.total += value

    def set(self, value: float) -> None:
        assert self.kind == "gauge"
        self.total = value

    def observe(self, value: float) -> None:
        assert self.kind == "histogram"
        self.observed.append(value)


class _Family:
    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.kind = name, kind

    def Metric(self, labels: dict[str, str], buckets: Sequence[float] = ()) -> Metric:
        assert bool(buckets) == (self.kind == "histogram")
        METRICS[" ".join((self.name, *labels.values()))] = made = Metric(self.kind)
        return made


METRICS: dict[str, Metric] = {}  # by name and labels, the newest of each: "labs_running iterative-gpt2"
LOG: list[str] = []  # what the models wrote to the server's log as errors


def _install() -> None:
    module: Any = types.ModuleType("triton_python_backend_utils")
    module.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = START
    module.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = END
    module.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = RESCHEDULE
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    module.Tensor, module.TritonError, module.InferenceResponse = Tensor, TritonError, Response
    module.MetricFamily = _Family
    module.get_input_tensor_by_name = lambda request, name: request.input(name)
    module.Logger = types.SimpleNamespace(log_info=lambda text: None, log_error=LOG.append)
    sys.modules["triton_python_backend_utils"] = module


_install()
_numbers = itertools.count()


def load(path: str, **parameters: Any) -> Any:
    """The model of ``model_repos/<path>``, initialised, its template filled with ``parameters`` (or with 1)."""
    folder = REPOS / path
    spec = importlib.util.spec_from_file_location(f"model_{next(_numbers)}", folder / "1" / "model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    template = (folder / "config.pbtxt").read_text(encoding="utf-8")
    filled = re.sub(r"\$\{(\w+)\}", lambda match: str(parameters.get(match[1], 1)), template)
    filled = filled.replace("kind: 1", "kind: KIND_CPU")
    parsed = text_format.Parse(filled, ModelConfig())
    config = json_format.MessageToDict(
        parsed, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    model = module.TritonPythonModel()
    model.initialize(
        {
            "model_name": folder.name,
            "model_config": json.dumps(config),
            "model_instance_kind": "CPU",
            "model_instance_name": f"{folder.name}_0_0",
            "model_repository": str(folder),
            "model_version": "1",
        }
    )
    return model
