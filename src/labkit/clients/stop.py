"""Ending a request inside an ensemble: Triton does not pass a client's cancellation on to its models (server#6739)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from labkit.clients.base import ASK_S, connect

STOP = "stop"  # an input of TensorRT-LLM's: true cancels the live request of the same id
WAIT_S = 10.0


def configs(endpoint: str, models: Sequence[str]) -> Mapping[str, Any]:
    """The configurations of those models that the server has."""
    found = {}
    with connect(endpoint) as client:
        for name in models:
            with contextlib.suppress(InferenceServerException):
                found[name] = client.get_model_config(name, client_timeout=ASK_S).config
    return found


def stoppable_steps(endpoint: str, models: Sequence[str]) -> Mapping[str, str]:
    """For each ensemble among the models, the step that has an input to stop a request."""
    found = {}
    known = configs(endpoint, models)
    for name, config in known.items():
        for step in config.ensemble_scheduling.step:
            inputs = known[step.model_name].input if step.model_name in known else []
            if any(each.name == STOP for each in inputs):
                found[name] = step.model_name
    return found


def stop_request(endpoint: str, model: str, id: str) -> None:
    """Tell a model to end its live request of that id; harmless where there is none."""
    with connect(endpoint) as client, contextlib.suppress(InferenceServerException):
        needed = [
            each for each in client.get_model_config(model, client_timeout=ASK_S).config.input if not each.optional
        ]
        inputs = [_input(each.name, _datatype(each), 0) for each in needed]
        answered = threading.Event()
        client.start_stream(callback=lambda result, error: answered.set())
        client.async_stream_infer(model, [*inputs, _input(STOP, "BOOL", True)], request_id=id)
        answered.wait(WAIT_S)
        client.stop_stream()


def _datatype(each: Any) -> str:
    """The wire's word for an input's type: INT32 for TYPE_INT32."""
    kinds = type(each).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    return str(kinds[each.data_type].name.removeprefix("TYPE_"))


def _input(name: str, datatype: str, value: Any) -> InferInput:
    tensor = InferInput(name, [1, 1], datatype)
    tensor.set_data_from_numpy(np.array([[value]], dtype=triton_to_np_dtype(datatype)))
    return tensor
