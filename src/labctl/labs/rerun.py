"""Recorded requests on a running server again, pinned to steps by the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from labctl.clock.clock import PATIENCE_S, Clock
from labkit.errors import LabError
from labkit.evidence import steplog
from labkit.predict.recording import MODEL, Arrival
from labkit.predict.replay import Tokens
from labkit.records import RequestRecord
from labkit.workloads.engine_stream import EngineStream

LOOK_S = 0.005
LEAST_ID, MULTIPLIER = 5, 2_654_435_761  # ids below stand for special tokens; the other spreads ids (Knuth)


def prompts(arrivals: Sequence[Arrival], vocabulary: int) -> list[list[int]]:
    """Token ids of the model's vocabulary for recorded prompts: equal where the prompts were."""
    tokens = Tokens()
    return [
        [LEAST_ID + node * MULTIPLIER % (vocabulary - LEAST_ID) for node in tokens.of(arrival, arrival.prompt)]
        for arrival in arrivals
    ]


def send(stream: EngineStream, arrival: Arrival, ids: Sequence[int]) -> RequestRecord:
    """Send one request with its recorded tenant and priority."""
    more = {"tenant": arrival.tenant} if arrival.tenant else {}
    return stream.ask(ids, arrival.limit, "", request_priority=arrival.priority, **more)


def pinned(
    endpoint: str, run_dir: Path, arrivals: Sequence[Arrival], vocabulary: int, timeout: float = PATIENCE_S
) -> list[RequestRecord]:
    """Send each request before the step that its ``after`` names, while the clock stands still, and step to the end.

    Where nothing is left to compute before that step, the next request comes at once, as in a replay.
    """
    ids = prompts(arrivals, vocabulary)
    records: list[RequestRecord] = []
    steps = live = 0
    with _standing(Clock(run_dir, (MODEL,))) as clock, EngineStream(endpoint) as stream:
        while len(records) < len(arrivals) or live:
            if not live:
                steps = max(steps, arrivals[len(records)].after)
            while len(records) < len(arrivals) and arrivals[len(records)].after <= steps:
                records.append(send(stream, arrivals[len(records)], ids[len(records)]))
                live += 1
                _await(clock, live, timeout)  # so that they come in this order
            clock.step(1, MODEL)
            steps += 1
            live = _left(clock, timeout)
        stream.wait(*records, timeout=timeout)
    return records


@contextmanager
def _standing(clock: Clock) -> Iterator[Clock]:
    clock.pause()
    try:
        yield clock
    finally:
        clock.run()


def _requests(state: Mapping[str, object]) -> int:
    """The requests in the model, as its clock file says."""
    if state["state"] == "held":
        names = state["ids"]
        assert isinstance(names, list)
        return len(names) + int(str(state.get("queue", 0)))
    return int(str(state.get("left", 0)))


def _left(clock: Clock, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for state in clock.states(MODEL):
            if state["state"] in ("held", "idle"):
                return _requests(state)
        time.sleep(LOOK_S)
    raise LabError(f"{MODEL} has not ended a step within {timeout:g} s", "", "labctl logs STACK")


def _await(clock: Clock, live: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if any(state["state"] == "held" and _requests(state) == live for state in clock.states(MODEL)):
            return
        time.sleep(LOOK_S)
    raise LabError(f"{MODEL} has not received {live} requests within {timeout:g} s", "", "labctl logs STACK")


def log_of(run_dir: Path, file: Path, since: float, records: Sequence[RequestRecord]) -> Path:
    """Keep the step log of ``records`` in ``file``, once it has the record of each; ``since``: monotonic seconds."""
    names = {record.id for record in records}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        steplog.keep(run_dir, file, since, records)
        text = file.read_text(encoding="utf-8")
        if all(f'"kind":"request","name":"{name}"' in text for name in names):
            return file
        time.sleep(LOOK_S)
    raise LabError("the step log lacks requests that were answered", f"within {PATIENCE_S:g} s", "labctl logs STACK")
