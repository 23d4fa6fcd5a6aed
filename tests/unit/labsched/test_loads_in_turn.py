"""A load that its client began after the one before it follows that one: in a replay, and when it is sent again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import SETTINGS, cost, some_requests

from labctl.labs import rerun
from labkit.client import load
from labkit.evidence.records import RequestRecord
from labsched.replay import player
from labsched.replay.recording import Arrival, Recording, Sent
from labsched.step import Step

PAUSE = 0.25


def two_loads(first: int, second: int, seed: int) -> Recording:
    """As it was recorded: the second load begins `PAUSE` after the end of the first."""
    one, other = some_requests(first, seed), [replace(a, name=f"b{a.name}") for a in some_requests(second, seed + 1)]
    rows = player.replay(Recording(SETTINGS, one), SETTINGS, cost).steps
    times = {name: row.over for row in rows for name in row.ended}
    one = [replace(a, left_at=times[a.name]) for a in one]
    over = max(times.values())
    other = [replace(a, at=a.at + over + PAUSE, left_at=9e9, follows=not n) for n, a in enumerate(other)]
    return Recording(SETTINGS, [*one, *other])


def decisions(rows: Sequence[Step]) -> list[dict[str, Any]]:
    return [row.decides for row in rows]


@given(first=st.integers(1, 12), second=st.integers(1, 12), seed=st.integers(0, 99), slower=st.floats(0.2, 5))
def test_a_load_that_follows_meets_an_empty_server_however_long_the_first_takes(
    first: int, second: int, seed: int, slower: float
) -> None:
    recording = two_loads(first, second, seed)

    def seconds(row: Step) -> float:
        return slower * cost(row)

    done = player.replay(recording, SETTINGS, seconds)
    arrivals = recording.arrivals
    alone = player.replay(replace(recording, arrivals=arrivals[:first]), SETTINGS, seconds).steps
    begin = arrivals[first].at
    later = [replace(a, at=a.at - begin, follows=False) for a in arrivals[first:]]
    rest = player.replay(replace(recording, arrivals=later), SETTINGS, seconds).steps
    assert decisions(done.steps) == [*decisions(alone), *decisions(rest)]
    assert done.arrived[arrivals[first].name] == pytest.approx(alone[-1].over + PAUSE)
    gaps = [b.at - a.at for a, b in itertools.pairwise(arrivals[first:])]
    came = [done.arrived[a.name] for a in arrivals[first:]]
    assert [b - a for a, b in itertools.pairwise(came)] == pytest.approx(gaps)


def test_only_what_a_client_sent_after_all_answers_follows_and_no_open_loop_does() -> None:
    arrivals = [Arrival(name, at, 0, 1, 1, 1, "length") for name, at in zip("abcde", (0, 1, 5, 9, 12), strict=True)]
    recording = Recording(SETTINGS, arrivals)
    sent = {"a": Sent(0, None, 4), "b": Sent(1, None, 3), "c": Sent(5, None, 8)}
    sent |= {"d": Sent(9, 9, 10), "e": Sent(12, None, 13)}

    def follow(**other: Sent) -> str:
        return "".join(a.name for a in recording.in_turn({**sent, **other}).arrivals if a.follows)

    assert follow() == "ce"
    assert follow(b=Sent(1, None, 6)) == "e"  # c was sent before b's answer
    assert follow(a=Sent(0)) == ""  # when a's answer was there is not known
    assert recording.in_turn({}) == recording


def test_a_load_that_followed_is_sent_when_the_first_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = two_loads(3, 2, seed=1)
    events: list[Any] = []

    class Stream:
        def __init__(self, *_: Any) -> None: ...

        def __enter__(self) -> Stream:
            return self

        def __exit__(self, *_: object) -> None: ...

        def wait(self, *records: RequestRecord, timeout: float) -> None:
            events.append(len(records))

    def at_once(times: Sequence[float], send: Callable[[int], RequestRecord], tell: Any) -> list[RequestRecord]:
        events.append([round(at, 6) for at in times])
        return [send(number) for number in range(len(times))]

    asked: list[int] = []

    def ask(stream: Any, arrival: Arrival, ids: Sequence[int], *_: Any) -> RequestRecord:
        asked.append(arrival.limit)
        return RequestRecord(arrival.name, "", "")

    monkeypatch.setattr(rerun, "EngineStream", Stream)
    monkeypatch.setattr(load, "open_loop", at_once)
    monkeypatch.setattr(rerun, "send_recorded", ask)
    sent = rerun.as_sent(recording.arrivals)
    rerun.send_on_time("", sent, 1000, 0, 1)
    first, _, second, _ = events
    assert (events[1], events[3]) == (3, 2)
    assert first == [round(a.at, 6) for a in recording.arrivals[:3]]
    assert second[0] == pytest.approx(PAUSE)
    assert asked == [a.limit for a in recording.arrivals]
