"""The marks by which the local runtime knows its own: variables of a process, names of shared memory."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from pathlib import Path

RECORD, ROOT, STACK = "LABS_RECORD", "LABS_RECORD_ROOT", "LABS_RECORD_STACK"
REPLICA = "LABS_REPLICA"  # its number, where a stack has several servers; labserve reads it too
SERVER = "tritonserver"
STUB = "triton_python_backend_stub"
PROMETHEUS = "prometheus"
DOOR = "labs-door"  # labdoor.__main__
SHM = Path("/dev/shm")


def marks(root: Path, stack: str) -> dict[str, str]:
    """The variables of whatever belongs to a stack."""
    return {ROOT: str(root), STACK: stack}


def shm_prefix(root: Path, stack: str, number: int = 0) -> str:
    """Names a server's shared-memory regions: unlike for two checkouts, none the start of another.

    A replica's begins as its stack's does.
    """
    digest = hashlib.sha256(f"{root}\0{stack}".encode()).hexdigest()[:12]
    return f"labs-{digest}-{f'{number}-' if number else ''}"


def regions(root: Path, stack: str, number: int = 0) -> list[Path]:
    return sorted(SHM.glob(f"{shm_prefix(root, stack, number)}*"))


def hide(root: Path, stack: str) -> None:
    """Make a stack's shared memory its owner's alone: Boost gives it to everybody to read, whatever the umask says."""
    for region in regions(root, stack):
        with contextlib.suppress(OSError):  # it has just gone
            region.chmod(0o600)


def judge_socket(root: Path, stack: str) -> Path:
    """Where the guard's judge listens: not in the checkout, whose path may be longer than a socket's may be."""
    return Path(tempfile.gettempdir()) / f"{shm_prefix(root, stack)}judge"


def admin_socket(root: Path, stack: str) -> Path:
    """Where the balancer tells what it sees."""
    return Path(tempfile.gettempdir()) / f"{shm_prefix(root, stack)}admin"


def leavings(root: Path, stack: str) -> list[Path]:
    """What is there, outside the checkout, of the servers and what stands before them."""
    sockets = (judge_socket(root, stack), admin_socket(root, stack))
    return [*regions(root, stack), *(path for path in sockets if path.exists())]
