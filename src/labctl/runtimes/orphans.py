"""What a killed labctl or a killed server left on this machine: servers, stubs and shared memory of this checkout.

Every command looks for it, so this reads ``/proc`` itself and imports next to nothing: a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.runtimes.marks import RECORD, REPLICA, ROOT, SERVER, SHM, STACK, STUB, hide, regions

PROC = Path("/proc")
COMM = 15  # characters that the kernel keeps of a process's name
PATIENCE_S = 3.0
MOST = 1000  # processes that are ended; one that cannot be killed must not keep a command for ever


@dataclass(frozen=True)
class Found:
    """A server or a stub of this checkout."""

    pid: int
    name: str
    parent: int
    stack: str
    record: str
    replica: int


def end(root: Path, stacks: Sequence[str], held: Callable[[str], bool] = lambda stack: False) -> list[str]:
    """End the servers whose ``run`` or ``bench`` is dead, the stubs whose server is dead, and their regions.

    Args:
        stacks: those whose shared memory is looked for.
        held: whether a command that lives is changing that stack: what ends there is its own to clear away.

    Returns:
        what was ended, in words.
    """
    candidates = [(stack, region) for stack in stacks for region in regions(root, stack)] if _any_region() else []
    ended: list[Found] = []
    while True:
        every = list(_processes(root))
        dead = [one for one in every if one.name == SERVER and _orphaned(one.record)]
        servers = {one.pid for one in every if one.name == SERVER} - {one.pid for one in dead}
        dead += [one for one in every if one.name == STUB and one.parent not in servers and not held(one.stack)]
        if not dead or len(ended) > MOST:
            break
        for one in dead:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
        _wait(dead)
        ended += dead  # once more: a server may have started a stub meanwhile
    for stack in {one.stack for one in every if one.pid in servers}:
        hide(root, stack)  # a model that was loaded since has made new ones
    kept = {region for one in every if one.pid in servers for region in regions(root, one.stack, one.replica)}
    gone = []
    for stack, region in candidates:
        if region not in kept and not held(stack):
            with contextlib.suppress(OSError):
                region.unlink()
                gone.append(str(region))
    return [*(f"process {one.pid} ({one.name} of {one.stack})" for one in ended), *gone]


def _any_region() -> bool:
    return next(SHM.glob("labs-*"), None) is not None


def _processes(root: Path) -> Iterator[Found]:
    known = {name[:COMM]: name for name in (SERVER, STUB)}
    for entry in os.scandir(PROC):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended, or is somebody else's
            folder = PROC / entry.name
            name = known.get((folder / "comm").read_text().strip())
            if name is None:
                continue
            env = dict(pair.partition("=")[::2] for pair in (folder / "environ").read_text().split("\0"))
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if env.get(ROOT) == str(root) and state != "Z":
                yield Found(int(entry.name), name, int(parent), env.get(STACK, ""), env.get(RECORD, ""),
                            int(env.get(REPLICA) or 0))  # fmt: skip


def _orphaned(record: str) -> bool:
    from labctl.runtimes.base import Record

    with contextlib.suppress(ValueError, KeyError, TypeError):
        return Record.from_json(record).orphaned()
    return False


def _wait(dead: Sequence[Found]) -> None:
    """Until the kernel has taken them away; a zombie that waits for its parent counts as gone."""
    deadline = time.monotonic() + PATIENCE_S
    for one in dead:
        while time.monotonic() < deadline:
            try:
                state = (PROC / str(one.pid) / "stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                break
            if state == "Z":
                break
            time.sleep(0.01)
