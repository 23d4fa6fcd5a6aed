"""What every open page is told of the requests that were sent from it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from labctl.clock.clock import Clock
from labctl.pages.live.asking import DONE, MOST, SENT
from labctl.pages.live.events import AskEvent, Event, TroubleEvent
from labctl.pages.live.hub import Hub


def first_told(tmp_path: Path, events: list[AskEvent]) -> dict[str, AskEvent]:
    """The requests that a page hears of which comes after these events, by number."""

    async def hear() -> list[Event]:
        hub = Hub(Clock(tmp_path, ("m",)), "")
        running = asyncio.create_task(hub.run())
        await asyncio.sleep(0)
        for event in events:
            hub.tell(event)
        await asyncio.sleep(0)
        _, first, _ = hub.join()
        running.cancel()
        return first

    asked = [cast(AskEvent, event) for event in asyncio.run(hear()) if event.get("k") == "ask"]
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


def test_a_page_hears_what_is_wrong_with_the_stack(tmp_path: Path) -> None:
    async def hear() -> str:
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
