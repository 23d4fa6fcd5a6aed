"""`labctl scale --auto --target` on real replicas: too few answers within the limits bring another one, rest takes it.

A step takes half a second and a replica has eight slots. Twelve users at once are four too many for one replica: these
wait a whole answer of eight seconds, which is beyond the limit. For two replicas they are few, and get their first
token within a step: the limit is ten steps, for a busy machine.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machinery import labctl, started
from own_stack import shown
from waiting import eventually

from labctl.replicas.signals import ANSWERED, GOOD
from labkit.client import metrics
from labkit.client.ask import TextStream
from labkit.client.text_model import TextModel
from labkit.evidence.records import RequestRecord

pytestmark = pytest.mark.night

STACK, MODEL = "scaled", "streams"
SLOTS, STEP_MS, TOKENS, USERS, FEW = 8, 500, 16, 12, 6
PATIENCE_S = 600.0  # rest must last for 30 looks
UP = ("--replicas", "1", "--balance", "l7", "--runtime", "local", "--ports", "auto")
SET = (f"seats={SLOTS}", f"step_ms={STEP_MS}", "slo=ttft<5000ms,tpot<60000ms")


class Users:
    """So many clients, each with its next request as soon as its last one has ended; each on a stream of its own."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint, self._model = endpoint, TextModel.of(endpoint, MODEL)
        self.wanted, self.done = 0, list[RequestRecord]()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def at_work(self) -> Iterator[Users]:
        try:
            yield self
        finally:
            self.set(0)

    def set(self, wanted: int) -> None:
        """Have that many from now on; those that are too many end with their request, and are waited for."""
        self.wanted = wanted
        for thread in self._threads[wanted:]:
            thread.join(PATIENCE_S)
        self._threads = self._threads[:wanted]
        for number in range(len(self._threads), wanted):
            self._threads.append(threading.Thread(target=self._work, args=[number]))
            self._threads[-1].start()

    def _work(self, number: int) -> None:
        while number < self.wanted:
            with TextStream(self._endpoint) as stream:
                record = self._model.send(stream, "a b", TOKENS)
                self.done.append(record)
                stream.wait(record, timeout=PATIENCE_S)


def counted(root: Path) -> tuple[float, float]:
    """Requests that all replicas have answered, and those of them within the limits."""
    found = [metrics.scrape(one["endpoints"]["metrics"]).own for one in shown(root, STACK)["replicas"]]

    def total(name: str) -> float:
        return sum(
            value for own in found for (model, key), value in own.items() if model == MODEL and key.startswith(name)
        )

    return total(ANSWERED), total(GOOD)


def within_limits(root: Path) -> float:
    """The share of the next answers, as many as there are users; one may be counted, and not yet as good."""
    before, good = counted(root)
    now, good_now = eventually(lambda: found if (found := counted(root))[0] >= before + USERS else None, PATIENCE_S)
    return (good_now - good) / (now - before)


@pytest.fixture
def log(own: Path) -> Iterator[Any]:
    """What the loop has decided, line by line, without the times; it runs meanwhile."""
    labctl("up", STACK, *UP, *(word for one in SET for word in ("--set", one)), root=own)
    path = own / ".labs" / STACK / "scale.log"
    with started(own, "scale", STACK, "--auto", "1:2", "--target", "95%"):
        yield lambda: [line.partition(" ")[2] for line in path.read_text().splitlines()] if path.exists() else []


def test_late_answers_bring_a_replica_that_mends_them_and_rest_takes_it_without_a_request_lost(
    own: Path, log: Any
) -> None:
    def replicas() -> list[str]:
        return [one["state"] for one in shown(own, STACK)["replicas"]]

    with Users(shown(own, STACK)["endpoints"]["grpc"]).at_work() as users:
        users.set(FEW)
        eventually(lambda: within_limits(own) == 1, timeout=PATIENCE_S)
        assert log() == []
        users.set(USERS)
        eventually(lambda: replicas() == ["ready"] * 2, timeout=PATIENCE_S)
        (decided,) = log()
        late = re.fullmatch(r"1 -> 2: (\d+)% within the limits by 1", decided)
        assert late and int(late[1]) < 95
        eventually(lambda: within_limits(own) >= 0.95, timeout=PATIENCE_S)
        users.set(0)  # of some users one waits for a step's end now and then; and `labctl status` asks the models
        eventually(lambda: log() == [decided, "2 -> 1: nothing waits for 2"], timeout=PATIENCE_S)
        eventually(lambda: replicas() == ["ready"], timeout=PATIENCE_S)
        users.set(FEW)
        eventually(lambda: within_limits(own) == 1, timeout=PATIENCE_S)  # one replica is enough for few
    assert {(record.error, record.output_tokens) for record in users.done} == {("", TOKENS)}
    assert len(users.done) > 4 * USERS
