"""Lab 02 and sequence ids: whoever uses one twice hears of it, and nobody loses a slot (faults 34 and 38)."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest
from gpt2_streams import ask, text_input
from lab_server import LabServer
from machinery import labctl
from pacing import slowed
from tritonclient.grpc import InferenceServerClient
from waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.night

MODEL = "iterative-gpt2"
SLOTS = 8


@pytest.fixture(scope="module")
def server(lab_server: Callable[..., LabServer]) -> LabServer:
    return lab_server("iterative", threads=1)


class Started:
    """A stream that starts sequences; what comes back ends up in a queue."""

    def __init__(self, grpc: str) -> None:
        self._client = InferenceServerClient(grpc)
        self._events: queue.Queue[Any] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._events.put((result, error)))

    def start(self, id: int, tokens: int, **flags: bool) -> None:
        self._client.async_stream_infer(
            MODEL,
            [text_input(b"I have lived in")],
            sequence_id=id,
            sequence_start=True,
            parameters={"max_tokens": tokens, "ignore_eos": True},
            enable_empty_final_response=True,
            **flags,
        )

    def outcome(self, timeout: float = DEADLINE_S) -> str:
        """The message of the next error, "" for the next final answer."""
        deadline = time.monotonic() + timeout
        while True:
            result, error = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            if error is not None:
                return str(error)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return ""

    def first(self) -> None:
        result, error = self._events.get(timeout=DEADLINE_S)
        assert error is None, error
        assert result is not None

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


@pytest.mark.parametrize("streams", [1, 2])
def test_fault_34_a_sequence_id_that_is_started_twice_ends_both_at_once_with_a_message(
    server: LabServer, streams: int
) -> None:
    made = [Started(server.grpc) for _ in range(streams)]
    first, second = made[0], made[-1]
    with slowed(server.run_dir, MODEL):  # the first has not ended when the second comes
        first.start(41 + streams, 900)
        first.first()
        second.start(41 + streams, 900)
        told = [second.outcome(), first.outcome()]
    assert all(f"sequence_id: {41 + streams}" in words for words in told), told
    for each in made:
        each.close()


def test_a_request_that_ends_its_own_sequence_is_told_so(server: LabServer) -> None:
    stream = Started(server.grpc)
    stream.start(77, 5, sequence_end=True)
    assert "sequence_end: " in stream.outcome()
    stream.close()


def test_fault_34_rounds_of_duplicates_leave_every_slot_to_others(server: LabServer, checkout: Any) -> None:
    for round_ in range(4):
        streams = [Started(server.grpc) for _ in range(2)]
        for number, stream in enumerate(streams):
            for _ in range(3):
                stream.start(100 + 10 * round_ + number, 40)
        for stream in streams:
            assert stream.outcome()
            stream.close()
    answers = ask(server.grpc, MODEL, [b"The"] * 2 * SLOTS, {"max_tokens": 4, "ignore_eos": True})
    assert all(answer.finals[-1] for answer in answers)
    eventually(lambda: '"ready"' in labctl("status", "iterative", "--json", root=checkout).stdout)
