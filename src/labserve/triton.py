"""What a model.py says to Triton: answers, refusals, gauges. Only usable inside Triton's python backend."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.params import BadInput

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def parameter(args: dict[str, str], name: str, default: str | None = None) -> str:
    """A parameter of the model's config.pbtxt; without a default, a missing one is a KeyError."""
    parameters = json.loads(args["model_config"])["parameters"]
    if default is not None and name not in parameters:
        return default
    value: str = parameters[name]["string_value"]
    return value


def device(args: dict[str, str]) -> str:
    """Where the instance is to run, as PyTorch calls it: "cpu" or "cuda:N"."""
    if args["model_instance_kind"] == "GPU":
        return f"cuda:{args['model_instance_device_id']}"
    return "cpu"


def instance(args: dict[str, str]) -> str:
    """A short name of the instance within its model, for the step log."""
    return args["model_instance_name"].removeprefix(args["model_name"]).lstrip("_") or "0"


def reader(request: Any) -> Callable[[str], Any]:
    """The request's inputs by name, as arrays; None for one that was not sent."""

    def read(name: str) -> Any:
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy()

    return read


def text_of(request: Any, name: str) -> bytes:
    """The one string that a request carries in its input `name`; BadInput if there are more."""
    rows = pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)
    if len(rows) != 1:
        raise BadInput(name, f"one text per request, please; this one has {len(rows)}")
    raw = rows[0]
    return raw if isinstance(raw, bytes) else str(raw).encode()


def respond(request: Any, text: str, last: bool) -> None:
    """Answer with a piece of text; the last one carries the final flag itself (no empty response follows)."""
    tensor = pb_utils.Tensor("text_output", np.array([text.encode()], dtype=object))
    request.get_response_sender().send(pb_utils.InferenceResponse([tensor]), _FINAL if last else 0)


def refuse(request: Any, error: Exception) -> None:
    """Answer with an error; it is the request's last answer."""
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
    request.get_response_sender().send(response, _FINAL)


class Gauges:
    """The scheduler's state on Triton's /metrics page, labelled with the model's name."""

    def __init__(self, model: str, slots: int) -> None:
        self._slots = metric("labs_slots_used", "Sequences that hold a slot", "GAUGE", model)
        self._steps = metric("labs_steps_total", "Steps, one token for each sequence in the batch", "COUNTER", model)
        self._tokens = metric("labs_tokens_total", "Tokens generated", "COUNTER", model)
        metric("labs_slots", "Slots there are", "GAUGE", model).set(slots)

    def step(self, tokens: int, slots_used: int) -> None:
        """Count one step."""
        self._steps.increment(1)
        self._tokens.increment(tokens)
        self._slots.set(slots_used)


# A family lives as long as the Python object: it is kept with its metric.
_families: list[Any] = []


def metric(name: str, description: str, kind: str, model: str) -> Any:
    """A metric of that name on /metrics, labelled with the model's name. `kind` is GAUGE or COUNTER."""
    family = pb_utils.MetricFamily(name=name, description=description, kind=getattr(pb_utils.MetricFamily, kind))
    _families.append(family)
    return family.Metric(labels={"model": model})
