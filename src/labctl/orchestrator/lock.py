"""One ``up`` or ``down`` of a stack at a time; the second fails at once and names the holder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from labctl.errors import LabError
from labctl.runtimes.proc import Proc
from labctl.workspace import Workspace, atomic_write, disk_errors, require_own

FILES = ("lock", "lock.json", "state.json", "server.log", "compose.json")
FOLDERS = ("repository", "run", "front")


@contextlib.contextmanager
def stack_lock(workspace: Workspace, stack: str, action: str) -> Iterator[None]:
    """Hold a stack. The kernel frees the lock when its holder dies, so it cannot go stale.

    Args:
        action: what the holder does ("up", "down"): ``labctl status`` shows it.

    Raises:
        LabError: someone else holds it.
    """
    path = workspace.stack_dir(stack) / "lock"
    _require_own(workspace, stack)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)  # logs and step logs hold what clients ask and are answered
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        pid, what = holder(workspace, stack)
        raise LabError(
            f"another 'labctl {what}' of {stack} is in progress (pid {pid})",
            "only one command at a time can change a stack",
            f"wait for it, or stop it: kill {pid}",
        ) from error
    except OSError as error:
        raise LabError(f"cannot lock {path}", error.strerror or str(error)) from error
    try:
        atomic_write(_note(path), json.dumps({**asdict(Proc.current()), "action": action}))
        yield
    finally:
        _note(path).unlink(missing_ok=True)
        lock.release()


def _require_own(workspace: Workspace, stack: str) -> None:
    """Refuse what stands where a stack's files are to be and is no file or folder of ours.

    Raises:
        LabError: a link, a folder in a file's place, or somebody else's file; it is named, and nothing is touched.
    """
    folder = workspace.stack_dir(stack)
    for path in (workspace.state, folder, *(folder / name for name in FOLDERS)):
        require_own(path, "folder")
    for path in (*(folder / name for name in FILES), *folder.glob("server-*.log")):
        require_own(path, "file")


def holder(workspace: Workspace, stack: str) -> tuple[int, str]:
    """(pid, action) of the process that changes the stack now; (0, "") if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(_note(workspace.stack_dir(stack) / "lock").read_text())
        if Proc(int(data["pid"]), float(data["started"])).alive():
            return int(data["pid"]), str(data["action"])
    return 0, ""


def _note(path: Path) -> Path:
    return path.with_name("lock.json")
