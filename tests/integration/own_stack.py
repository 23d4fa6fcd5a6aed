"""A stack of a test's own: brought up as a person does, watched from outside, nothing of it may be left."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from conftest import labctl
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace

STACK = "iterative"
DEADLINE_S = 120.0


def eventually(check: Callable[[], Any], timeout: float = DEADLINE_S) -> Any:
    """The first true value of ``check`` before the deadline."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{check} did not become true within {timeout:g} s")


def leftovers(root: Path, stack: str = STACK) -> list[str]:
    return LocalRuntime(Workspace(root, root / "cache")).leftovers(stack)


def server_of(root: Path, stack: str = STACK) -> psutil.Process | None:
    record = LocalRuntime(Workspace(root, root / "cache")).find(stack)
    return psutil.Process(record.server["pid"]) if record else None


def up(root: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """``labctl up iterative`` on the local runtime, on ports of its own."""
    return labctl("up", STACK, "--runtime", "local", "--ports", "auto", *arguments, root=root, check=check)


def shown(root: Path, stack: str = STACK) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(labctl("status", stack, "--json", root=root).stdout)
    return status


def state(root: Path, stack: str = STACK) -> str:
    return str(shown(root, stack)["state"])
