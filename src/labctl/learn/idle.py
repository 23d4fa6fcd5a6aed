"""An exercise server that nobody checks on any more goes by itself: a small process watches for that."""

from __future__ import annotations

import os
import secrets
import sys
import time

from labctl.listener import Silent
from labctl.orchestrator.session import Session
from labctl.runtimes import processes
from labctl.workspace import Workspace, atomic_write

IDLE_S = 1800.0
LOOK_S = 5.0


def watch(workspace: Workspace) -> None:
    """Start the watcher of a server that has just come up; it ends with the server, or with the next one's watcher."""
    from labctl.learn.server import used

    mine = secrets.token_hex(8)
    atomic_write(used(workspace), mine)
    log = workspace.log_file("exercise").with_name("idle.log")
    argv = [sys.executable, "-m", "labctl.learn.idle", mine]
    processes.spawn(argv, {**os.environ, "LABS_ROOT": str(workspace.root)}, log, cwd=workspace.root, outlive=True)


def main(mine: str) -> None:
    """Watch until the server is gone, has been idle for too long, or has a watcher that is newer than ``mine``."""
    from labctl.learn.server import STACK, stop, used

    session = Session.open(Silent())
    limit = float(os.environ.get("LABS_EXERCISE_IDLE_S", IDLE_S))
    used_file = used(session.workspace)
    while session.find(STACK):
        try:
            if used_file.read_text(encoding="utf-8") != mine:
                return
            if time.time() - used_file.stat().st_mtime > limit:
                stop(session)
                return
        except FileNotFoundError:
            return
        time.sleep(min(LOOK_S, limit / 4))


if __name__ == "__main__":
    main(sys.argv[1])
