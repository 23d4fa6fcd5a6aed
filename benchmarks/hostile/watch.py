"""What becomes of a server on the local runtime while it is shot at: deaths, stubs, slots, memory."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import psutil

from benchmarks.hostile.models import Model
from benchmarks.hostile.send import ANSWERED, PATIENCE_S, Client
from benchmarks.hostile.sent import Sent
from labctl import server_api
from labctl.measure.evidence import metrics
from labctl.runtimes.base import Record
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.marks import STUB, regions

SETTLE_S = 90.0  # a sequence that nobody ends keeps its slot until it has idled out
POLL_S = 0.1


@dataclass(frozen=True)
class Size:
    """Bytes: resident memory of the server and its stubs, and their regions in /dev/shm."""

    memory: int
    shm: int


class Watch:
    """A server that is up, and clients with some patience (seconds)."""

    def __init__(self, runtime: LocalRuntime, record: Record, patience: float = PATIENCE_S) -> None:
        self._runtime, self.record, self._patience = runtime, record, patience
        self._meet(runtime.find(record.stack) or record)  # whoever started it knows its keeper alone

    def _meet(self, record: Record) -> None:
        self.pid = int((record.server or {})["pid"])
        self._stubs = set(self._children(STUB))

    def _children(self, name: str = "") -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.pid).children(recursive=True)
            return [child for child in children if name[:15] in child.name()]
        return []

    def size(self) -> Size:
        memory = 0
        for process in (psutil.Process(self.pid), *self._children()):
            with contextlib.suppress(psutil.Error):
                memory += process.memory_info().rss
        return Size(
            memory, sum(path.stat().st_size for path in regions(self._runtime.workspace.root, self.record.stack))
        )

    def lives(self) -> bool:
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def dies(self, within: float) -> bool:
        """Whether it ends in so many seconds: a process that crashes takes a moment to be gone."""
        deadline = time.monotonic() + within
        while self.lives() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return not self.lives()

    def dead_stubs(self) -> int:
        return len([stub for stub in self._stubs if not stub.is_running() or stub.status() == psutil.STATUS_ZOMBIE])

    def died(self) -> str:
        """After a death: how, once the server is up again under supervision, or "gone" where nothing starts it."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            again = self._runtime.find(self.record.stack)
            pid = (again.server or {}).get("pid") if again else None
            if again and pid != self.pid and server_api.is_live(self.record.endpoints.http):
                self._meet(again)
                return self._runtime.ended(self.record.stack) or "started again"
            time.sleep(POLL_S)
        return self._runtime.ended(self.record.stack) or "gone"

    def leaked(self, models: list[Model]) -> dict[str, int]:
        """Slots that are held, and requests that wait, although everybody has left; by model."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            self.disabled(models)  # a model counts, and forgets, when it is asked
            now = metrics.scrape(self.record.endpoints.metrics)
            held = {
                f"slots of {model}": int(value) for (model, name), value in now.own.items() if name == "labs_running"
            }
            held |= {f"waiting at {name}": int(counted.pending) for name, counted in now.models.items()}
            held = {what: count for what, count in held.items() if count}
            if not held or time.monotonic() > deadline:
                return held
            time.sleep(POLL_S)

    def client(self) -> Client:
        return Client(self.record.endpoints.http, self.record.endpoints.grpc, self._patience)

    def disabled(self, models: list[Model]) -> dict[str, str]:
        """Models that do not answer a good request, and what they say instead."""
        client = self.client()
        found = {m.name: client.send(Sent("good", m.name, "stream", messages=[m.good(time.time_ns())])) for m in models}
        client.close()
        return {name: " ".join(outcome) for name, outcome in found.items() if outcome[0] != ANSWERED}
