"""What of this checkout is on this machine: its marks, its processes, and what a killed command left behind.

Every command first ends and removes what a labctl or a server that was killed has left (:func:`tidy`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from labctl.runtimes.lock import holder
from labctl.runtimes.record import Record
from labctl.unfinished import HELD, OLD
from labctl.workspace import Workspace
from labkit import nofollow

RECORD, ROOT, STACK = "LABS_RECORD", "LABS_RECORD_ROOT", "LABS_RECORD_STACK"
REPLICA = "LABS_REPLICA"  # its number, where a stack has several servers; labserve reads it too
SERVER = "tritonserver"
STUB = "triton_python_backend_stub"
PROMETHEUS = "prometheus"
DOOR = "labs-door"  # labdoor.__main__
SHM = Path("/dev/shm")
COMM = 15  # characters that the kernel keeps of a process's name
PATIENCE_S = 3.0  # for all of them together; a process that cannot be killed must not keep a command for longer


def marks(root: Path, stack: str) -> dict[str, str]:
    """The variables of whatever belongs to a stack."""
    return {ROOT: str(root), STACK: stack}


def shm_prefix(root: Path, stack: str, number: int = 0) -> str:
    """How the names of a server's shared memory begin (a replica's as its stack's); none is the start of another's."""
    digest = hashlib.sha256(f"{root}\0{stack}".encode()).hexdigest()[:12]
    return f"labs-{digest}-{f'{number}-' if number else ''}"


def keeper_command(server: Sequence[str], ended: Path, regions: str, *options: str) -> list[str]:
    """A server's command, under a keeper of the shared memory whose names begin with ``regions``."""
    arguments = ["--ended", str(ended), "--regions", regions, *options]
    return [sys.executable, "-m", "labctl.runtimes.keeper", *arguments, "--", *server]


def regions(root: Path, stack: str, number: int = 0) -> list[Path]:
    return sorted(SHM.glob(f"{shm_prefix(root, stack, number)}*"))


def hide(root: Path, stack: str) -> None:
    """Make a stack's shared memory its owner's alone: Boost gives it to everybody to read, whatever the umask says."""
    for region in regions(root, stack):
        with contextlib.suppress(OSError):  # it has just gone
            region.chmod(0o600)


def admin_socket(root: Path, stack: str) -> Path:
    """Where the balancer tells what it sees: not in the checkout, whose path may be longer than a socket's may be."""
    return Path(tempfile.gettempdir()) / f"{shm_prefix(root, stack)}admin"


def leftover_paths(root: Path, stack: str) -> list[Path]:
    """What is there, outside the checkout, of the servers and what stands before them."""
    socket = admin_socket(root, stack)
    return [*regions(root, stack), *([socket] if socket.exists() else [])]


def our_processes(root: Path, names: Collection[str]) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """The processes of a checkout's stacks that have one of these names, with their environment."""
    # The kernel cuts names at 15 characters; psutil gives them whole where the command line has them.
    starts = tuple(name[:COMM] for name in names)
    for process in psutil.process_iter(["name", "status", "ppid"]):
        if not process.info["name"].startswith(starts) or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        with contextlib.suppress(psutil.Error):  # it has just ended, or is somebody else's
            env = process.environ()
            if ROOT in env and _belongs(process, Path(env[ROOT]), root):
                yield process, env


def _belongs(process: psutil.Process, marked: Path, root: Path) -> bool:
    """Whether a process of a checkout that was called ``marked`` is one of the checkout ``root``.

    A checkout that was moved while its stack runs has the server's working folder in it.
    """
    if marked == root:
        return True
    return not marked.exists() and Path(process.cwd()).is_relative_to(root)


def is_alive(process: psutil.Process) -> bool:
    """Whether it may still do anything: a process that waits to be reaped holds neither memory nor ports."""
    try:
        # In a process that is killed, the first thread may end before the others, which still hold memory and ports.
        return bool(process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


def send_signal(victims: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in victims:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def kill(victims: Sequence[psutil.Process], deadline: float) -> None:
    """Kill them all, and wait until the kernel has taken them away or the time (``time.monotonic``) is over."""
    send_signal(victims, signal.SIGKILL)
    while any(map(is_alive, victims)) and time.monotonic() < deadline:
        time.sleep(0.01)


def is_unkillable(pid: int) -> bool:
    """Whether SIGKILL was sent to a process that the kernel cannot end yet: in a driver, or on a dead disk."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(psutil.PROCFS_PATH, str(pid), "status").read_text(errors="replace")
        for line in status.splitlines():
            if line.startswith(("SigPnd:", "ShdPnd:")):
                pending = int(line.split()[1], 16)
                if pending >> (signal.SIGKILL - 1) & 1:
                    return True
    return False


def tidy(workspace: Workspace) -> list[str]:
    """End and remove what a labctl or a server that was killed left behind; what that was, in words."""
    stacks = [folder.path for folder in workspace.folders()]
    ended = end_orphans(workspace.root, [path.name for path in stacks], lambda stack: holder(workspace, stack)[0] != 0)
    gone = sweep_unfinished([*stacks, *workspace.caches])
    return ended + gone


def end_orphans(root: Path, stacks: Sequence[str], held: Callable[[str], bool]) -> list[str]:
    """End the servers whose ``run`` or ``bench`` is dead, the stubs whose server is dead, and their regions; in words.

    Args:
        stacks: those whose shared memory is looked for.
        held: whether a command that lives is changing that stack: what ends there is its own to clear away.
    """
    candidates = [(stack, region) for stack in stacks for region in regions(root, stack)]
    killed: dict[psutil.Process, str] = {}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        every = list(our_processes(root, (SERVER, STUB)))
        all_servers = [(process, env) for process, env in every if process.info["name"] == SERVER]
        stubs = [(process, env) for process, env in every if process.info["name"] == STUB]
        servers = {process.pid: env for process, env in all_servers if not _orphaned(env.get(RECORD, ""))}
        orphans = [(process, env) for process, env in all_servers if process.pid not in servers]
        orphans += [
            (process, env)
            for process, env in stubs
            if process.info["ppid"] not in servers and not held(env.get(STACK, ""))
        ]
        new = {
            process: f"process {process.pid} ({process.info['name']} of {env.get(STACK, '')})"
            for process, env in orphans
            if process not in killed and not is_unkillable(process.pid)
        }
        if not new or time.monotonic() > deadline:
            break
        kill(list(new), deadline)
        killed |= new  # and once more: a server may have started a stub meanwhile
    for stack in {env.get(STACK, "") for env in servers.values()}:
        hide(root, stack)  # a model that was loaded since has made new ones
    places = [(env.get(STACK, ""), int(env.get(REPLICA, 0))) for env in servers.values()]
    kept = {region for stack, replica in places for region in regions(root, stack, replica)}
    gone = []
    for stack, region in candidates:
        if region not in kept and not held(stack):
            with contextlib.suppress(OSError):
                region.unlink()
                gone.append(str(region))
    return [*(words for process, words in killed.items() if not is_alive(process)), *gone]


def sweep_unfinished(parents: Iterable[Path]) -> list[str]:
    """Remove what killed makers left in these folders, and put back what they had moved aside; the paths."""
    swept = []
    for parent in parents:
        swept += [str(left) for left in sorted(parent.glob(f".*{HELD}*")) if _sweep_one(left)]
        for left in sorted(parent.glob(f".*{OLD}*")):
            target = parent / left.name[1:].rpartition(OLD)[0]
            with contextlib.suppress(OSError):
                if target.exists() or not any(left.iterdir()):
                    shutil.rmtree(left)
                else:
                    left.rename(target)
                swept.append(str(left))
    return swept


def _sweep_one(left: Path) -> bool:
    """Whether the folder was a killed maker's, and has gone."""
    with contextlib.suppress(OSError):
        handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            nofollow.lock(handle, 0)  # its maker has it for as long as it lives
            shutil.rmtree(left)
            return True
        finally:
            os.close(handle)
    return False


def _orphaned(record: str) -> bool:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return Record.from_json(record).orphaned()
    return False
