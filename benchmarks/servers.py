"""The servers of a stack on the local runtime, as processes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from labctl.runtimes.leftovers import REPLICA, SERVER, STACK, our_processes


def servers_of(root: Path, stack: str) -> dict[int, psutil.Process]:
    """The servers of a stack that live, by their number; 0 if there is one without a balancer."""
    found: dict[int, psutil.Process] = {}
    for process, env in our_processes(root, (SERVER,)):
        with contextlib.suppress(psutil.Error):
            if process.name() == SERVER and env.get(STACK) == stack:
                found.setdefault(int(env.get(REPLICA) or 0), process)  # not a child that is not yet a stub
    return found
