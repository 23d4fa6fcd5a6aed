"""Hugging Face's two models compute one request, or one batch, to its end: what becomes of those who wait meanwhile."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lab_server import LabServer
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException
from waiting import DEADLINE_S, eventually

from labkit.client import metrics

pytestmark = pytest.mark.night

MODELS = ("llama-python", "llama-python-batched")
LONG = 1900  # tokens: minutes
LOOKS = 10  # in a row, that somebody waits: longer than a batch is gathered, which who comes then would still join


@pytest.fixture
def server(lab_server: Callable[..., LabServer]) -> LabServer:
    return lab_server("llama", model="random:llama-100m", threads=1, engine="transformers")  # no engine to build


def inputs(model: str, tokens: int) -> list[InferInput]:
    shape = [1, 1] if model.endswith("batched") else [1]
    text, limit = InferInput("text_input", shape, "BYTES"), InferInput("max_tokens", shape, "UINT32")
    text.set_data_from_numpy(np.full(shape, "I have lived in", dtype=object))
    limit.set_data_from_numpy(np.full(shape, tokens, dtype=np.uint32))
    return [text, limit]


@pytest.mark.parametrize("model", MODELS)
def test_who_waits_behind_a_long_request_is_refused_in_time_and_served_once_its_client_left(
    server: LabServer, model: str
) -> None:
    ended: queue.Queue[Any] = queue.Queue()
    calls: list[Any] = []

    waited = 0

    def somebody_waits() -> bool:
        """Behind a long request that is being computed."""
        nonlocal waited
        waited = waited + 1 if metrics.scrape(server.metrics).models[model].pending else 0
        if not waited and len(calls) < 4:  # those that come at the same moment share a batch
            calls.append(client.async_infer(model, inputs(model, LONG), lambda result, error: ended.put(error)))
        return waited == LOOKS

    with InferenceServerClient(server.grpc) as client:
        try:
            eventually(somebody_waits)
            with pytest.raises(InferenceServerException, match=r"(?i)timeout expired"):
                client.infer(model, inputs(model, 1), timeout=500_000, client_timeout=DEADLINE_S)
        finally:
            for call in calls:
                call.cancel()
        assert all(ended.get(timeout=DEADLINE_S) is not None for _ in calls)
        client.infer(model, inputs(model, 1), client_timeout=DEADLINE_S)
