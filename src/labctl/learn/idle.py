"""An exercise server that nobody checks on any more goes by itself: a small process watches for that."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time

from labctl.listener import Silent
from labctl.runtimes import processes
from labctl.runtimes.lock import stack_lock
from labctl.stack.session import EXERCISE, Session
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

IDLE_S = 1800.0
LOOK_S = 5.0


def watch(workspace: Workspace) -> None:
    """Start the watcher of a server that has just come up; it ends with the server, or with the next one's watcher."""
    mark = secrets.token_hex(8)
    atomic_write(workspace.folder(EXERCISE).used_file, mark)
    log = workspace.folder(EXERCISE).idle_log
    argv = [sys.executable, "-m", "labctl.learn.idle", mark]
    processes.spawn(argv, {**os.environ, "LABS_ROOT": str(workspace.root)}, log, cwd=workspace.root, outlive=True)


def main(mark: str) -> None:
    """Watch until the server is gone, has been idle for too long, or has a watcher whose ``mark`` is another one."""
    session = Session.open(Silent())
    limit = float(os.environ.get("LABS_EXERCISE_IDLE_S", IDLE_S))
    used_file = session.workspace.folder(EXERCISE).used_file
    while session.may_run(EXERCISE):
        try:
            if used_file.read_text(encoding="utf-8") != mark:
                return
            if time.time() - used_file.stat().st_mtime > limit and _stop_if_idle(session, limit):
                return
        except FileNotFoundError:
            return
        time.sleep(min(LOOK_S, limit / 4))


def _stop_if_idle(session: Session, limit: float) -> bool:
    """Stop the server, unless a check holds it or has just used it; whether it was stopped."""
    from labctl.learn.server import stop_exercise_server  # which starts this watcher

    with contextlib.suppress(LabError), stack_lock(session.workspace, "exercises", "exercise stop"):
        if time.time() - session.workspace.folder(EXERCISE).used_file.stat().st_mtime > limit:
            return stop_exercise_server(session)
    return False


if __name__ == "__main__":
    main(sys.argv[1])
