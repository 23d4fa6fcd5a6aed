"""An exercise server that nobody checks on any more goes by itself: a small process watches for that."""

from __future__ import annotations

import os
import sys
import time

from labctl.listener import Silent
from labctl.orchestrator.session import Session
from labctl.runtimes import processes
from labctl.workspace import Workspace

IDLE_S = 1800.0
LOOK_S = 5.0


def touch(workspace: Workspace) -> None:
    """The server is in use now."""
    from labctl.learn.server import used

    used(workspace).parent.mkdir(parents=True, exist_ok=True)
    used(workspace).touch()


def watch(workspace: Workspace) -> None:
    """Start the watcher; it ends with the server."""
    touch(workspace)
    log = workspace.log_file("exercise").with_name("idle.log")
    argv = [sys.executable, "-m", "labctl.learn.idle"]
    processes.spawn(argv, {**os.environ, "LABS_ROOT": str(workspace.root)}, log, cwd=workspace.root, outlive=True)


def main() -> None:
    from labctl.learn.server import STACK, stop, used

    session = Session.open(Silent())
    limit = float(os.environ.get("LABS_EXERCISE_IDLE_S", IDLE_S))
    while session.find(STACK):
        try:
            if time.time() - used(session.workspace).stat().st_mtime > limit:
                stop(session)
                return
        except FileNotFoundError:
            return
        time.sleep(min(LOOK_S, limit / 4))


if __name__ == "__main__":
    main()
