"""Calls between a model.py and Triton. Only usable inside Triton's python backend."""

import io
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.params import BadInput

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

if isinstance(sys.stdout, io.TextIOWrapper):  # a model's prints go line by line into the server's log
    sys.stdout.reconfigure(line_buffering=True)


def parameter(args: dict[str, str], name: str, default: str | None = None) -> str:
    """A parameter of the model's config.pbtxt; without a default, a missing one is a KeyError."""
    parameters = json.loads(args["model_config"])["parameters"]
    if default is not None and name not in parameters:
        return default
    value: str = parameters[name]["string_value"]
    return value


def model_parameters(args: dict[str, str]) -> Callable[[str], str]:
    """The parameters of the model's config.pbtxt by name, "" for one that it does not have."""
    return lambda name: parameter(args, name, "")


def decoupled(args: dict[str, str]) -> bool:
    """Whether a request of the model may have several responses."""
    return bool(json.loads(args["model_config"])["model_transaction_policy"]["decoupled"])


def device(args: dict[str, str]) -> str:
    """Where the instance is to run, as PyTorch calls it: "cpu" or "cuda:N"."""
    if args["model_instance_kind"] == "GPU":
        return f"cuda:{args['model_instance_device_id']}"
    return "cpu"


def instance(args: dict[str, str]) -> str:
    """A short name of the instance within its model, for the step log."""
    return args["model_instance_name"].removeprefix(args["model_name"]).lstrip("_") or "0"


def request_names(requests: Sequence[Any]) -> list[str]:
    """The step log's names of requests that are executed together: by their sequence, or by their own id."""
    names: list[str] = []
    for place, request in enumerate(requests):
        name = str(request.correlation_id() or request.request_id() or f"row {place}")
        names.append(f"{name}#{place}" if name in names else name)
    return names


def input_reader(request: Any) -> Callable[[str], Any]:
    """The request's inputs by name, as arrays; None for one that was not sent."""

    def read(name: str) -> Any:
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy()

    return read


def control(request: Any, name: str, default: Any = 0) -> Any:
    """A control input of the sequence batcher (READY, START, END, CORR_ID), one number; `default` if there is none."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else int(tensor.as_numpy().reshape(-1)[0])


def text_of(request: Any, name: str) -> bytes:
    """The one string that a request carries in its input `name`; BadInput if there are more."""
    rows = pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)
    if len(rows) != 1:
        raise BadInput(name, f"one text per request, please; this one has {len(rows)}")
    raw = rows[0]
    return raw if isinstance(raw, bytes) else str(raw).encode()


def respond(request: Any, text: str | Exception, last: bool, **further: str) -> None:
    """Answer with a piece of text; the last one carries the final flag itself (no empty response follows).

    What a decoder has instead of a text, where it failed for one sequence, is raised. `further` are outputs beside the
    text, such as `logprobs` (labserve.text.logprobs).
    """
    if isinstance(text, Exception):
        raise text
    send(request, text_response(text, **further), last)


def text_response(text: str, **further: str) -> Any:
    """A response with a piece of text, and outputs beside it."""
    tensors = []
    for name, value in {"text_output": text, **further}.items():
        tensors.append(pb_utils.Tensor(name, np.array([value.encode()], dtype=object)))
    return pb_utils.InferenceResponse(tensors)


def send(request: Any, response: Any, final: bool) -> None:
    """Send a response; the `final` one is the request's last."""
    request.get_response_sender().send(response, FINAL if final else 0)


def refuse_request(request: Any, words: str) -> None:
    """Answer with an error; it is the request's last answer."""
    send(request, pb_utils.InferenceResponse(error=pb_utils.TritonError(words)), final=True)
