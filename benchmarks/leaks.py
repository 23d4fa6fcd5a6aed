"""What the door and the server behind it hold, and what of it has grown although the load was the same.

Memory is what a process and its children have written and share with no other process. So shared memory is not counted
twice, and a program's files, which other servers may have open too, are not counted at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.servers import servers_of
from labctl.runtimes.leftovers import DOOR
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit.evidence import metrics
from labkit.waiting import attempts

SETTLE_S, LOOK_S = 90.0, 0.25
#: Counts that are zero while nothing is asked: the door's, the models', Triton's.
IN_FLIGHT = ("labs_door_running", "labs_running", "labs_waiting", "nv_inference_pending_request_count")


@dataclass(frozen=True)
class Held:
    """``memory`` in MB; ``files`` are open ones, sockets among them."""

    memory: float = 0.0
    files: int = 0
    threads: int = 0


#: What may come and go under one load: an allocator's rest, a connection that is kept, a thread of a pool.
ALLOWED = Held(memory=8.0, files=8, threads=8)
#: A process, its children included.
Parts = Mapping[str, psutil.Process]


def parts(record: Record, port: int) -> Parts:
    """The door that listens on this port, and the stack's one server, both on the local runtime."""
    (door,) = [one for one in psutil.process_iter(["name"]) if one.info["name"] == DOOR and _listens(one, port)]
    (server,) = servers_of(Workspace.find().root, record.stack).values()
    return {"door": door, "server": server}


def _listens(process: psutil.Process, port: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(
            one.laddr.port == port and one.status == psutil.CONN_LISTEN for one in process.net_connections("inet")
        )
    return False


def dead(watched: Parts) -> list[str]:
    """Which of them have ended."""
    return [name for name, one in watched.items() if not one.is_running() or one.status() == psutil.STATUS_ZOMBIE]


def held(watched: Parts) -> dict[str, Held]:
    """The memory of each process now. Raises psutil.Error: one has ended."""
    return {name: _total([one, *one.children(recursive=True)]) for name, one in watched.items()}


def _total(processes: Iterable[psutil.Process]) -> Held:
    found = Held()
    for one in processes:
        found = Held(found.memory + _written(one.pid), found.files + one.num_fds(), found.threads + one.num_threads())
    return found


def _written(pid: int) -> float:
    """MB. Raises psutil.NoSuchProcess."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Swap:"))) / 2**10


def grown(before: Mapping[str, Held], after: Mapping[str, Held], allowed: Held = ALLOWED) -> list[str]:
    """What has grown by more than ``allowed``, in words; [] if nothing leaks."""
    return [
        f"{part}: {what} {was:.0f} -> {now:.0f}"
        for part in before
        for (what, was), now, more in zip(
            vars(before[part]).items(), vars(after[part]).values(), vars(allowed).values(), strict=True
        )
        if now - was > more
    ]


def in_flight(pages: Iterable[str], patience: float = SETTLE_S) -> list[str]:
    """The gauges on these metrics pages (``host:port``) that do not go back to zero once no request is sent."""
    left: list[str] = []
    for _ in attempts(patience, LOOK_S):
        left = [
            line
            for page in pages
            for line in metrics.metrics_page(page).splitlines()
            if line.startswith(IN_FLIGHT) and float(line.rpartition(" ")[2])
        ]
        if not left:
            break
    return left
