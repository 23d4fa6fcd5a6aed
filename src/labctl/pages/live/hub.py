"""The messages for every open page: new lines of the step logs, the page's own requests, Triton's counters."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from labctl.clock import Clock, ask_for_texts
from labctl.pages.live.asking import MOST, SENT
from labctl.pages.live.counters import LiveCounters
from labctl.pages.live.events import AskEvent, ClockEvent, CountersEvent, Event, HeadEvent
from labctl.pages.live.feed import Feed
from labctl.pages.live.lines import HELD, Line, held_steps
from labctl.pages.live.routes import RouteTail
from labctl.pages.live.tail import StepLogTail
from labkit.client import metrics
from labkit.errors import LabError
from labkit.evidence.names import LetterNames, Numbered
from labsched.vllm import reader

LOOK_S = 0.04
COUNT_S = 1.0
TROUBLE_S = 3.0
RECENT = 3000  # lines that a page gets when it connects
BEHIND = 500  # messages that a page may be behind before it must reconnect
Message = tuple[Sequence[Line], Sequence[Event]]  # lines, and other events


class Audience(ABC):
    """The open pages of one server, and their messages. It runs in the server's loop."""

    def __init__(self) -> None:
        self.head: HeadEvent = {"k": "head"}  # the first event that a page gets
        self._names = LetterNames()  # a request has the same name on all pages
        self._lines: deque[Line] = deque(maxlen=RECENT)
        self._pages: set[asyncio.Queue[Message | None]] = set()
        self._first: tuple[str, Feed] | None = None  # the first message as it is now; None: it has to be made
        self._loop: asyncio.AbstractEventLoop | None = None

    @abstractmethod
    async def run(self) -> None:
        """Poll the sources until cancelled."""

    def join(self) -> tuple[asyncio.Queue[Message | None], str, Feed]:
        """Add a page: the queue of its messages (None: it fell behind), its first message, and its feed.

        The first message takes long to make: all pages that come before the next change get the same.
        """
        if self._first is None:
            feed = Feed(self._names)
            self._first = spell(self._first_events(feed)), feed
        first, feed = self._first
        queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._pages.add(queue)
        return queue, first, copy.deepcopy(feed, {id(self._names): self._names})  # the names are those of all pages

    @abstractmethod
    def _first_events(self, feed: Feed) -> list[Event]:
        """The first events of a page, whose feed is new."""

    def leave(self, queue: asyncio.Queue[Message | None]) -> None:
        self._pages.discard(queue)

    def close(self) -> None:
        """Let every page go, from any thread."""
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._disconnect)

    def _disconnect(self) -> None:
        """Disconnect every page; its browser reconnects, and gets the state at that time."""
        self._first = None
        for queue in self._pages:
            queue.put_nowait(None)

    def _pass_on(self, lines: Sequence[Line], events: Sequence[Event]) -> None:
        self._first = None
        for queue in list(self._pages):
            if queue.qsize() > BEHIND:
                self._pages.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait((lines, events))


class PageFollower(Audience):
    """The pages of a recording that a learner's own vLLM writes: no request can be sent, and there is no clock."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._tail, self._run = reader.RecordingTail(folder), ""
        self.head = {
            "k": "head",
            "title": str(folder),
            "send": [],
            "note": f"recorded as it happens; {reader.NO_TEXTS}",
        }

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(LabError):  # the folder has no recording now, or a line that is damaged
                lines = await asyncio.to_thread(self._tail.read)
                if self._tail.run != self._run:  # another server's, whose requests have the same names
                    self._run = self._tail.run
                    self._names, self._lines = Numbered(), deque(maxlen=RECENT)
                    self._disconnect()
                if lines:
                    self._lines.extend(lines)
                    self._pass_on(lines, [])
            await asyncio.sleep(LOOK_S)

    def _first_events(self, feed: Feed) -> list[Event]:
        return [self.head, *feed.events(self._lines)]


class Hub(Audience):
    """The pages of a stack that is up. ``endpoint``: Triton's metrics. Only ``tell`` runs outside the server's loop."""

    def __init__(self, clock: Clock, endpoint: str) -> None:
        super().__init__()
        self.chat: Callable[[], str | None] = lambda: None  # gives the address of the stack's chat page
        # Gives what is wrong with the stack, None if nothing is; True also asks its models, which the page then shows.
        self.trouble: Callable[[bool], str | None] = lambda ask: None
        self._trouble: str | None = None
        self._failed = 0.0
        self._clock, self._endpoint = clock, endpoint
        self._tail = StepLogTail(clock.run_dir)
        self._routes = RouteTail(clock.run_dir, self._names)
        self._chat_address: str | None = None
        self._epoch = time.time() - time.monotonic()
        self._setting: ClockEvent = {"k": "clock", "until": None, "paused": False, "slow": 1.0}  # of the clock
        self._held: dict[tuple[str, str], Line] = {}  # the steps that wait for the clock, by model and instance
        self._asked: dict[str, AskEvent] = {}
        self._counters = LiveCounters()

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._look_for_trouble())

    async def _follow(self) -> None:
        """Send new lines and counts."""
        counted = 0.0
        while True:
            if lines := self._tail.read():
                self._names.take(id for line in lines for id in (*line["ids"], *line.get("waiting", ())))
                self._lines.extend(lines)
                self._counters.count(lines)
                self._pass_on(lines, [])
            if routes := self._routes.read():
                self._pass_on([], routes)
            self._look_at_the_clock()
            if self._pages and time.monotonic() - counted > COUNT_S:
                counted = time.monotonic()
                await self._count()
            await asyncio.sleep(LOOK_S)

    def tell(self, event: AskEvent) -> None:
        """Pass an event on to every page, from any thread."""
        if self._loop:
            self._loop.call_soon_threadsafe(self._take_ask, event)

    def _first_events(self, feed: Feed) -> list[Event]:
        lines = [*self._lines, *self._held.values()]
        head: HeadEvent = {**self.head, "chat": self._chat_address, "trouble": self._trouble}
        seen: list[Event] = [head, *feed.events(lines), *self._routes.recent, *self._asked.values()]
        return [*seen, self._rows(), self._setting]

    def _take_ask(self, event: AskEvent) -> None:
        if "name" in event:
            event = {**event, "called": self._names[event["name"]]}
        asked = self._asked.setdefault(event["n"], {"k": "ask", "n": event["n"]})
        if event.get("first") and not asked.get("first"):
            shown_model = self.head.get("into", {}).get(asked["model"], asked["model"])
            self._counters.first_response(shown_model, event["first"])
        asked.update(event)
        over = [number for number, request in self._asked.items() if request["state"] != SENT]
        for number in over[: max(0, len(self._asked) - MOST)]:  # a request in flight is never forgotten
            del self._asked[number]
        self._pass_on([], [event])

    def _look_at_the_clock(self) -> None:
        """Send the clock's setting, and the steps that wait for it, if they have changed."""
        modes = [self._clock.mode(model) for model in self._clock.models]
        factor = max((float(mode.get("factor", 1.0)) for mode in modes), default=1.0)
        ends = self._clock.until  # read once: a pause may end at any moment
        until = ends and round(ends + self._epoch)
        paused = any(mode["mode"] == "pause" for mode in modes)
        event: ClockEvent = {"k": "clock", "until": until, "paused": paused, "slow": factor}
        if event != self._setting:
            self._setting = event
            self._pass_on([], [event])
        held: dict[tuple[str, str], Line] = {
            (state["model"], state["instance"]): {"ids": [], "dur": 0.0, **state, "kind": HELD}
            for state in held_steps(self._clock)
        }
        if held != self._held:
            new = [line for key, line in held.items() if self._held.get(key) != line]
            self._held = held
            self._pass_on(new, [])

    async def _count(self) -> None:
        ask_for_texts(self._clock.run_dir)
        chat = await asyncio.to_thread(self.chat)
        if chat != self._chat_address:
            self._chat_address = chat
            self._pass_on([], [{"k": "chat", "address": chat}])
        with contextlib.suppress(LabError):
            snapshot = await asyncio.to_thread(metrics.scrape, self._endpoint)
            self._failed = sum(model.failed for model in snapshot.models.values())
            self._counters.snapshot(snapshot)
            self._pass_on([], [self._rows()])

    async def _look_for_trouble(self) -> None:
        """Send what is wrong with the stack whenever it has changed; models are asked only after a failure."""
        looked = 0.0
        while True:
            failed = self._failed
            if self._pages:
                trouble = await asyncio.to_thread(self.trouble, bool(self._trouble) or failed > looked)
                if trouble != self._trouble:
                    self._trouble = trouble
                    self._pass_on([], [{"k": "trouble", "words": trouble}])
                looked = failed
            await asyncio.sleep(TROUBLE_S)

    def _rows(self) -> CountersEvent:
        return {"k": "counters", "rows": self._counters.rows()}


def spell(events: Sequence[Event]) -> str:
    """The events as one message of the page's stream."""
    return f"data: {json.dumps(events, separators=(',', ':'))}\n\n"
