"""Ending a request inside an ensemble: Triton does not pass a client's cancellation on to its models (server#6739)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tritonclient.utils import InferenceServerException

from labkit.client.ask import ASK_S, connect
from labkit.client.text_model import Input, wire_datatype

STOP = "stop"  # an input of TensorRT-LLM's: true cancels the live request of the same id
ONE = (1, 1)  # the shape of an input for one request
WAIT_S = 10.0


def configs(endpoint: str, models: Sequence[str]) -> Mapping[str, Any]:
    """The configurations of those models that the server has."""
    by_name = {}
    with connect(endpoint) as client:
        for name in models:
            with contextlib.suppress(InferenceServerException):
                by_name[name] = client.get_model_config(name, client_timeout=ASK_S).config
    return by_name


def stoppable_steps(endpoint: str, models: Sequence[str]) -> Mapping[str, str]:
    """For each ensemble among the models, the step that has an input to stop a request."""
    known = configs(endpoint, models)
    takes_stop = {name for name, config in known.items() if any(item.name == STOP for item in config.input)}
    return {
        name: step.model_name
        for name, config in known.items()
        for step in config.ensemble_scheduling.step
        if step.model_name in takes_stop
    }


def stop_request(endpoint: str, model: str, id: str) -> None:
    """Tell a model to end its live request of that id; harmless where there is none."""
    with connect(endpoint) as client, contextlib.suppress(InferenceServerException):
        config = client.get_model_config(model, client_timeout=ASK_S).config
        needed = [Input(item.name, wire_datatype(item.data_type), ONE) for item in config.input if not item.optional]
        inputs = [*(tensor.filled(0) for tensor in needed), Input(STOP, "BOOL", ONE).filled(True)]
        answered = threading.Event()
        client.start_stream(callback=lambda result, error: answered.set())
        client.async_stream_infer(model, inputs, request_id=id)
        answered.wait(WAIT_S)
        client.stop_stream(cancel_requests=True)  # else it waits for an answer after all
