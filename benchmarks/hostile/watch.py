"""What becomes of a stack's servers on the local runtime while they are shot at: deaths, stubs, slots, memory."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.hostile.models import Model
from benchmarks.hostile.send import ANSWERED, PATIENCE_S, Client
from benchmarks.hostile.sent import Sent
from labctl.runtimes.leftovers import REPLICA, ROOT, SERVER, STACK, STUB, regions
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Endpoints, Record
from labctl.triton import server_api
from labkit.evidence import metrics

SETTLE_S = 90.0  # a sequence that nobody ends keeps its slot until it has idled out
POLL_S = 0.1
TOLD_S = 0.5  # models tell Triton their numbers four times a second


@dataclass(frozen=True)
class Size:
    """Bytes: resident memory of the servers and their stubs, and their regions in /dev/shm."""

    memory: int
    shm: int


def servers_of(root: Path, stack: str) -> dict[int, psutil.Process]:
    """The servers of a stack that live, by their number; 0 where there is one without a balancer."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["name", "status"]):
        if process.info["name"] == SERVER and process.info["status"] != psutil.STATUS_ZOMBIE:
            with contextlib.suppress(psutil.Error):
                env = process.environ()
                if (env.get(ROOT), env.get(STACK)) == (str(root), stack):
                    found.setdefault(int(env.get(REPLICA) or 0), process)  # not a child that is not yet a stub
    return found


class Watch:
    """Servers that are up, and clients with some patience (seconds)."""

    def __init__(self, runtime: LocalRuntime, record: Record, patience: float = PATIENCE_S) -> None:
        self._runtime, self.record, self._patience = runtime, record, patience
        self._meet(self._there())

    def _there(self) -> dict[int, psutil.Process]:
        return servers_of(self._runtime.workspace.root, self.record.stack)

    def _meet(self, servers: dict[int, psutil.Process]) -> None:
        self._servers = servers
        self._stubs = set(self._children(STUB))

    def _children(self, name: str = "") -> list[psutil.Process]:
        found = []
        for server in self._servers.values():
            with contextlib.suppress(psutil.Error):
                found += [child for child in server.children(recursive=True) if name[:15] in child.name()]
        return found

    def size(self) -> Size:
        memory = 0
        for process in (*self._servers.values(), *self._children()):
            with contextlib.suppress(psutil.Error):
                memory += process.memory_info().rss
        return Size(
            memory, sum(path.stat().st_size for path in regions(self._runtime.workspace.root, self.record.stack))
        )

    def lives(self) -> bool:
        """Whether every server does that was there when it was last looked."""
        for server in self._servers.values():
            try:
                if not server.is_running() or server.status() == psutil.STATUS_ZOMBIE:
                    return False
            except psutil.NoSuchProcess:
                return False
        return True

    def dies(self, within: float) -> bool:
        """Whether it ends in so many seconds: a process that crashes takes a moment to be gone."""
        deadline = time.monotonic() + within
        while self.lives() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return not self.lives()

    def dead_stubs(self) -> int:
        return len([stub for stub in self._stubs if not stub.is_running() or stub.status() == psutil.STATUS_ZOMBIE])

    def died(self) -> str:
        """After a death: how, once all are up again under supervision, or "gone" where nothing starts it."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            again = self._there()
            whole = again.keys() == self._servers.keys() and again != self._servers
            if whole and all(server_api.is_live(one.endpoints.http) for one in self.record.servers):
                self._meet(again)
                return self._runtime.death_of(self.record.stack) or "started again"
            time.sleep(POLL_S)
        return self._runtime.death_of(self.record.stack) or "gone"

    def leaked(self, models: list[Model]) -> dict[str, int]:
        """Slots that are held, and requests that wait, although everybody has left; by model."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            for server in self.record.servers:  # a model counts, and forgets, when it is asked: each of them
                self._unanswered(server.endpoints, models)
            time.sleep(TOLD_S)
            now = metrics.scrape(self.record.scrape_endpoints["metrics"])
            held = {
                f"slots of {model}": int(value) for (model, name), value in now.own.items() if name == "labs_running"
            }
            held |= {f"waiting at {name}": int(counted.pending) for name, counted in now.models.items()}
            held = {what: count for what, count in held.items() if count}
            if not held or time.monotonic() > deadline:
                return held

    def client(self, endpoints: Endpoints | None = None) -> Client:
        at = endpoints or self.record.endpoints
        return Client(at.http, at.grpc, self._patience)

    def disabled(self, models: list[Model]) -> dict[str, str]:
        """Models that do not answer a good request, and what they say instead."""
        return self._unanswered(self.record.endpoints, models)

    def _unanswered(self, endpoints: Endpoints, models: list[Model]) -> dict[str, str]:
        client = self.client(endpoints)
        # Unary where a model can be asked so: Triton 2.51 fails a stream to a model with a cache (upstream issue 4362).
        ways = {m.name: "stream" if m.decoupled else "grpc" for m in models}
        found = {
            m.name: client.send(Sent("good", m.name, ways[m.name], messages=[m.good(time.time_ns())])) for m in models
        }
        client.close()
        return {name: " ".join(outcome) for name, outcome in found.items() if outcome[0] != ANSWERED}
