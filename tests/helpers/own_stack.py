"""A stack of a test's own: brought up as a person does, watched from outside, nothing of it may be left."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
from machinery import labctl

from labctl.runtimes.groups import groups
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace

STACK = "iterative"


def leftovers(root: Path, stack: str = STACK) -> list[str]:
    return LocalRuntime(Workspace(root, root / "cache")).leftovers(stack)


def server_of(root: Path, stack: str = STACK) -> psutil.Process | None:
    parts = groups(Workspace(root, root / "cache").folder(stack))
    return next(filter(None, (group.server() for group in parts)), None)


def up(root: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """``labctl up iterative`` on the local runtime, on ports of its own."""
    return labctl("up", STACK, "--runtime", "local", "--ports", "auto", *arguments, root=root, check=check)


def shown(root: Path, stack: str = STACK) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(labctl("status", stack, "--json", root=root).stdout)
    return status


def state(root: Path, stack: str = STACK) -> str:
    return str(shown(root, stack)["state"])
