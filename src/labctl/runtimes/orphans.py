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
PATIENCE_S = 3.0  # for all of them together; a process that cannot be killed must not keep a command for longer


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
    killed: dict[int, Found] = {}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        every = list(_processes(root))
        dead = [one for one in every if one.name == SERVER and _orphaned(one.record)]
        servers = {one.pid for one in every if one.name == SERVER} - {one.pid for one in dead}
        dead += [one for one in every if one.name == STUB and one.parent not in servers and not held(one.stack)]
        new = [one for one in dead if one.pid not in killed and not doomed(one.pid)]
        if not new or time.monotonic() > deadline:
            break
        for one in new:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
        killed |= {one.pid: one for one in new}
        _wait(new, deadline)  # and once more: a server may have started a stub meanwhile
    for stack in {one.stack for one in every if one.pid in servers}:
        hide(root, stack)  # a model that was loaded since has made new ones
    kept = {region for one in every if one.pid in servers for region in regions(root, one.stack, one.replica)}
    gone = []
    for stack, region in candidates:
        if region not in kept and not held(stack):
            with contextlib.suppress(OSError):
                region.unlink()
                gone.append(str(region))
    ended = [one for one in killed.values() if not _lives(one.pid)]
    return [*(f"process {one.pid} ({one.name} of {one.stack})" for one in ended), *gone]


def doomed(pid: int) -> bool:
    """Whether SIGKILL has been sent to a process that the kernel cannot end yet (in a driver, on a dead disk).

    Nobody can do more about it, so nothing waits for it a second time.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith(("SigPnd:", "ShdPnd:")) and int(line.split()[1], 16) >> (signal.SIGKILL - 1) & 1:
                return True
    return False


def _any_region() -> bool:
    return next(SHM.glob("labs-*"), None) is not None


def _processes(root: Path) -> Iterator[Found]:
    known = {name[:COMM]: name for name in (SERVER, STUB)}
    for entry in os.scandir(PROC):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended, or is somebody else's
            folder = PROC / entry.name
            name = known.get((folder / "comm").read_text(errors="replace").strip())
            if name is None:
                continue
            variables = os.fsdecode((folder / "environ").read_bytes()).split("\0")
            env = dict(pair.partition("=")[::2] for pair in variables)
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if env.get(ROOT) == str(root) and state != "Z":
                yield Found(int(entry.name), name, int(parent), env.get(STACK, ""), env.get(RECORD, ""),
                            int(env.get(REPLICA) or 0))  # fmt: skip


def _orphaned(record: str) -> bool:
    from labctl.runtimes.record import Record

    with contextlib.suppress(ValueError, KeyError, TypeError):
        return Record.from_json(record).orphaned()
    return False


def _wait(dead: Sequence[Found], deadline: float) -> None:
    """Until the kernel has taken them away, or the time is over."""
    for one in dead:
        while _lives(one.pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _lives(pid: int) -> bool:
    """A zombie that waits for its parent counts as gone."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
