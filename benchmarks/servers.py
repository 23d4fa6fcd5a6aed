"""The servers of a stack on the local runtime, as processes."""

from __future__ import annotations

from pathlib import Path

import psutil

from labctl.runtimes.groups import groups
from labctl.runtimes.local import server_process
from labctl.workspace import Workspace


def servers_of(root: Path, stack: str) -> dict[int, psutil.Process]:
    """Return the servers of a stack that live, by their number; 0 if there is one without a balancer."""
    found = {group.number or 0: server_process(group) for group in groups(Workspace(root, root).folder(stack))}
    return {number: process for number, process in found.items() if process}
