"""Sends recorded requests to a running server, each before its recorded step, with the help of the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from labctl.clock import PATIENCE_S, Clock, ClockState
from labctl.labs.rerun import LOOK_S, prompts, send_recorded
from labkit.client.trtllm import EngineStream
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts
from labsched.log.lines import MODEL
from labsched.replay.recording import Arrival

MANY = 100_000  # steps: until every request has ended


def send_step_by_step(
    endpoint: str, run_dir: Path, arrivals: Sequence[Arrival], vocabulary: int, timeout: float = PATIENCE_S
) -> list[RequestRecord]:
    """Send each request before the step that its ``after`` names, while the clock stands still, and step to the end.

    Where nothing is left to compute before that step, the next request comes at once, as in a replay.

    Raises LabError: a request failed.
    """
    ids = prompts(arrivals, vocabulary)
    records: list[RequestRecord] = []
    steps = live = 0
    with _standing(Clock(run_dir, (MODEL,))) as clock, EngineStream(endpoint) as stream:
        while len(records) < len(arrivals) or live:
            if not live:
                steps = max(steps, arrivals[len(records)].after)
            while len(records) < len(arrivals) and arrivals[len(records)].after <= steps:
                arrival, prompt = arrivals[len(records)], ids[len(records)]
                records.append(send_recorded(stream, arrival, prompt))
                live += 1
                _await(clock, live, timeout, stream, records)  # so that they come in this order
            until = arrivals[len(records)].after if len(records) < len(arrivals) else steps + MANY
            steps += clock.step(until - steps, MODEL).get(MODEL, 0)
            live = _left(clock, timeout)
            _check(stream, records)
        stream.wait(*records, timeout=timeout)
    return records


@contextmanager
def _standing(clock: Clock) -> Iterator[Clock]:
    clock.pause()
    try:
        yield clock
    finally:
        clock.run()


def _requests(state: ClockState) -> int:
    """The requests in the model, as its clock file says."""
    if state["state"] == "held":
        return len(state["ids"]) + state.get("queue", 0)
    return state.get("left", 0)


def _left(clock: Clock, timeout: float) -> int:
    """The requests in the model when its step has ended."""
    for _ in attempts(timeout, LOOK_S):
        for state in clock.states(MODEL):
            if state["state"] in ("held", "idle"):
                return _requests(state)
    raise AssertionError(f"{MODEL} has not ended a step within {timeout:g} s")


def _check(stream: EngineStream, records: Sequence[RequestRecord]) -> None:
    """Raise LabError if a request has failed."""
    if failed := [record for record in records if record.error]:
        stream.wait(*failed, timeout=0.0)
    stream.check()


def _await(clock: Clock, live: int, timeout: float, stream: EngineStream, records: Sequence[RequestRecord]) -> None:
    """Wait until the model has ``live`` requests."""
    for _ in attempts(timeout, LOOK_S):
        _check(stream, records)
        if any(state["state"] == "held" and _requests(state) == live for state in clock.states(MODEL)):
            return
    raise AssertionError(f"{MODEL} has not received {live} requests within {timeout:g} s")
