"""Static batching by a gate: who may join, and how many steps that takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from labsched.vllm.gate import Gate


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 9))
def test_a_batch_lasts_as_long_as_its_longest_request(lengths: list[int], size: int) -> None:
    """An engine without a limit of its own, one token a step: only the gate keeps requests out."""
    gate, steps = Gate(size), 0
    waiting = [SimpleNamespace(request_id=str(number), left=left) for number, left in enumerate(lengths)]
    running: list[Any] = []
    while waiting or running:
        assert steps < sum(lengths), "the gate is closed, and the engine is empty"
        joining = gate.admit(waiting, {request.request_id for request in [*waiting, *running]})
        assert not (running and joining), "nobody joins a batch that runs"
        waiting = [request for request in waiting if request not in joining]
        assert all(map(gate.closed, waiting)) and not any(map(gate.closed, joining))
        running += joining
        for request in running:
            request.left -= 1
        running = [request for request in running if request.left]
        steps += 1
    assert steps == sum(max(lengths[at : at + size]) for at in range(0, len(lengths), size))


def test_a_member_that_waits_again_stays_a_member() -> None:
    gate, members = Gate(2), [SimpleNamespace(request_id=id) for id in "abc"]
    gate.admit(members, {"a", "b", "c"})
    assert gate.admit(members[1:], {"a", "b", "c"}) == [members[1]], "a preempted one may join its batch again"
