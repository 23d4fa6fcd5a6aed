"""What every open page is told of the requests that were sent from it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from labctl.clock.clock import Clock
from labctl.pages.live.asking import DONE, MOST, SENT
from labctl.pages.live.hub import Hub


def first_told(tmp_path: Path, events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The requests that a page hears of which comes after these events, by number."""

    async def hear() -> list[dict[str, Any]]:
        hub = Hub(Clock(tmp_path, ("m",)), "")
        running = asyncio.create_task(hub.run())
        await asyncio.sleep(0)
        for event in events:
            hub.tell(event)
        await asyncio.sleep(0)
        _, first, _ = hub.join()
        running.cancel()
        return first

    return {event["n"]: event for event in asyncio.run(hear()) if event["k"] == "ask"}


def sent(number: int) -> dict[str, Any]:
    return {"k": "ask", "n": str(number), "model": "m", "state": SENT}


def test_a_request_in_flight_is_not_forgotten_however_many_came_after_it(tmp_path: Path) -> None:
    others = [event for n in range(1, 3 * MOST) for event in (sent(n), {"k": "ask", "n": str(n), "state": DONE})]
    answer = {"k": "ask", "n": "0", "state": DONE, "text": "at last", "first": 9.0}
    told = first_told(tmp_path, [sent(0), *others, answer])
    assert told["0"]["text"] == "at last"
    assert len(told) <= MOST


def test_all_that_are_in_flight_are_kept_and_those_that_are_over_go_first(tmp_path: Path) -> None:
    over = [event for n in range(9) for event in (sent(n), {"k": "ask", "n": str(n), "state": DONE})]
    told = first_told(tmp_path, [*over, *(sent(n) for n in range(100, 100 + MOST))])
    assert sorted(told, key=int) == [str(n) for n in range(100, 100 + MOST)]
