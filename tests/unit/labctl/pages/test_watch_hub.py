"""What every open page is told of the requests that were sent from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from labctl.clock import Clock
from labctl.pages.live.asking import DONE, MOST, SENT
from labctl.pages.live.events import AskEvent, LaneEvent, TroubleEvent
from labctl.pages.live.feed import Feed
from labctl.pages.live.hub import Hub
from labctl.pages.live.server import WatchServer


def read(message: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(message.removeprefix("data: "))
    return events


def first_told(tmp_path: Path, events: list[AskEvent]) -> dict[str, AskEvent]:
    """The requests that a page hears of which comes after these events, by number."""

    async def hear() -> str:
        hub = Hub(Clock(tmp_path, ("m",)), "")
        running = asyncio.create_task(hub.run())
        await asyncio.sleep(0)
        for event in events:
            hub.tell(event)
        await asyncio.sleep(0)
        _, first, _ = hub.join()
        running.cancel()
        return first

    asked = [cast(AskEvent, event) for event in read(asyncio.run(hear())) if event.get("k") == "ask"]
    return {event["n"]: event for event in asked}


def sent(number: int) -> AskEvent:
    return {"k": "ask", "n": str(number), "model": "m", "state": SENT}


def done(number: int) -> AskEvent:
    return {"k": "ask", "n": str(number), "state": DONE}


def test_a_request_in_flight_is_not_forgotten_however_many_came_after_it(tmp_path: Path) -> None:
    others = [event for n in range(1, 3 * MOST) for event in (sent(n), done(n))]
    answer: AskEvent = {"k": "ask", "n": "0", "state": DONE, "text": "at last", "first": 9.0}
    told = first_told(tmp_path, [sent(0), *others, answer])
    assert told["0"]["text"] == "at last"
    assert len(told) <= MOST


def test_all_that_are_in_flight_are_kept_and_those_that_are_over_go_first(tmp_path: Path) -> None:
    over = [event for n in range(9) for event in (sent(n), done(n))]
    told = first_told(tmp_path, [*over, *(sent(n) for n in range(100, 100 + MOST))])
    assert sorted(told, key=int) == [str(n) for n in range(100, 100 + MOST)]


def step(*ids: str) -> dict[str, Any]:
    return {"kind": "step", "t": 1.0, "dur": 0.1, "model": "m", "instance": "0", "ids": list(ids)}


def test_pages_that_come_between_two_changes_share_what_their_first_message_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    events = Feed.events

    def counted(feed: Feed, lines: Iterable[Any]) -> list[LaneEvent]:
        made.append(len(lines := list(lines)))
        return events(feed, lines)

    monkeypatch.setattr(Feed, "events", counted)
    hub = Hub(Clock(tmp_path, ("m",)), "")
    hub._lines.extend([step("a")] * 3)
    assert len({hub.join()[1] for _ in range(9)}) == 1
    assert made == [3]
    hub._lines.append(step("a"))
    hub._pass_on([step("a")], [])
    hub.join()
    assert made == [3, 4]


def test_a_page_is_told_of_each_request_though_another_page_that_came_with_it_was_told(tmp_path: Path) -> None:
    hub = Hub(Clock(tmp_path, ("m",)), "")
    hub._lines.append(step("a"))
    (_, first, one), (_, _, other) = hub.join(), hub.join()
    assert [event["q"][0][1] for event in read(first) if "q" in event] == ["a"]
    for feed in (one, other):
        (event,) = feed.events([step("a", "b")])
        assert [name for _, name, _, _ in event["q"]] == ["b"]
    assert one.names is other.names


def test_a_page_hears_what_is_wrong_with_the_stack(tmp_path: Path) -> None:
    async def hear() -> str | None:
        hub = Hub(Clock(tmp_path, ("m",)), "")
        hub.trouble = lambda ask: "degraded"
        queue, _, _ = hub.join()
        running = asyncio.create_task(hub.run())
        while True:
            _, events = await queue.get() or ((), ())
            for event in events:
                if event.get("k") == "trouble":
                    running.cancel()
                    return cast(TroubleEvent, event)["words"]

    assert asyncio.run(hear()) == "degraded"


def test_a_viewer_that_has_left_at_once_costs_no_first_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(Clock(tmp_path, ("m",)), "")
    page = WatchServer("", hub, {})
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn has it
        "method": "GET",
        "path": f"/{page.token}/events",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }

    async def receive() -> dict[str, Any]:
        for _ in range(2):  # the loop sees the end of a connection after its request
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    def join() -> Any:
        raise AssertionError("a first message for nobody")

    monkeypatch.setattr(hub, "join", join)
    asyncio.run(page(scope, receive, send))
