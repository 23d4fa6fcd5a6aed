"""Small things that every python-backend model needs: its parameters, its gauges, an answer, a refusal."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Setup:
    """``initialize``'s arguments, read once."""

    def __init__(self, args: dict[str, str]) -> None:
        self.config: dict[str, Any] = json.loads(args["model_config"])
        self.model = args["model_name"]
        self.instance = args["model_instance_name"].removeprefix(f"{self.model}_")
        gpu = args["model_instance_kind"] == "GPU"
        self.device = f"cuda:{args['model_instance_device_id']}" if gpu else "cpu"

    def text(self, name: str, default: str = "") -> str:
        """A parameter of config.pbtxt."""
        entry = self.config["parameters"].get(name)
        return str(entry["string_value"]) if entry else default

    def flag(self, name: str) -> bool:
        return self.text(name) == "true"

    def number(self, name: str) -> int:
        return int(self.text(name))


def text_response(name: str, text: str) -> Any:
    """A response with one string, of shape [1] (a decoupled response has no batch dimension to fill)."""
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))])


def refuse(sender: Any, error: Exception) -> None:
    """Answer a request with an error and end it; the server and the other requests go on."""
    text = str(error) or type(error).__name__
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(text)), flags=FINAL)


def input_text(request: Any, name: str) -> bytes:
    """The first element of a string input, whatever its shape; b"" where there is none."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    values = tensor.as_numpy().reshape(-1) if tensor is not None else ()
    return bytes(values[0]) if len(values) else b""


class Gauges:
    """Gauges and counters of one model, on Triton's own /metrics."""

    def __init__(self, model: str, **described: str) -> None:
        self._metrics = {}
        for name, text in described.items():
            kind = pb_utils.MetricFamily.COUNTER if name.endswith("_total") else pb_utils.MetricFamily.GAUGE
            family = pb_utils.MetricFamily(name=f"labs_{name}", description=text, kind=kind)
            self._metrics[name] = (family, family.Metric(labels={"model": model}))

    def set(self, **values: float) -> None:
        for name, value in values.items():
            self._metrics[name][1].set(value)

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self._metrics[name][1].increment(value)
