"""A room without servers: its seats answer what a test says, and its pages are asked without a network."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from labctl.hub.app import Hub
from labctl.hub.codes import Codes
from labctl.hub.guess import Guess
from labctl.hub.room import Room
from labctl.learn.exercise import Exercise, find_all
from labctl.manifest.catalog import load
from labctl.workspace import Workspace
from labkit.waiting import attempts

ADDRESS = "http://127.0.0.1:8080"
PASSED: dict[str, Any] = {"passed": True, "sentence": "everything holds", "rows": ["ok  tokens"]}
Answer = Callable[[dict[str, Any]], Any]


@functools.cache
def exercises() -> list[Exercise]:
    workspace = Workspace.find()
    return [one for one in find_all(workspace, load(workspace)) if one.lab.number == "02"]


class FakeSeat:
    """A seat whose module answers what ``answer`` gives for a call; ``hold`` makes each call wait until it is set."""

    apart = used = True

    def __init__(self, number: int, answer: Answer, hold: threading.Event) -> None:
        self.number, self._answer, self._hold = number, answer, hold

    def prepare(self) -> None: ...

    def run(self, arguments: Sequence[str], given: str, seconds: float) -> str:
        assert self._hold.wait(60.0)
        answer = self._answer(json.loads(given))
        return answer if isinstance(answer, str) else f"a word of a model\n{json.dumps(answer)}\n"

    def close(self) -> None: ...


class RoomOfTest:
    """The application, the codes, and a browser for each visitor."""

    def __init__(self, folder: Path, answer: Answer, learners: int = 3) -> None:
        self.hold, self.folder = threading.Event(), folder
        self.hold.set()
        seats: Any = [FakeSeat(number, answer, self.hold) for number in range(1, learners + 1)]
        known, self.codes = Codes.make(learners)
        self.hub = Hub(Room(exercises(), seats, folder, 1), known, Guess(Workspace.find(), list))

    def browser(self, number: int | None = None) -> TestClient:
        client = TestClient(self.hub.app, ADDRESS, follow_redirects=False, headers={"origin": ADDRESS})
        if number is not None:
            assert client.post("/enter", data={"code": self.codes[number]}).status_code == 303
        return client

    def judged(self, learner: int) -> None:
        """Wait until the learner's check is over."""
        for _ in attempts(60.0, 0.01):
            if self.hub.room.checks.place(learner) is None:
                return
        raise AssertionError("the check is not over")


@contextlib.contextmanager
def room(folder: Path, answer: Answer = lambda call: PASSED) -> Iterator[RoomOfTest]:
    made = RoomOfTest(folder, answer)
    try:
        yield made
    finally:
        made.hold.set()
        made.hub.close()
