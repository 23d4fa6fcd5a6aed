"""What the compose tests do: run the command line, look at containers, wait for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labctl.runtimes import docker_engine
from labctl.runtimes.compose import ComposeRuntime
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    ".dockerignore",
    "compose.yaml",
    "compose.gpu.yaml",
    "docker",
    "labs",
    "model_repos",
    "models",
    "pyproject.toml",
    "src",
)


def labctl(*arguments: str, root: Path, timeout: float = 300, check: bool = True, **env: str) -> Any:
    """Run the real command line as a person does."""
    done = subprocess.run(
        [sys.executable, "-m", "labctl", *arguments], cwd=root, capture_output=True, text=True, timeout=timeout,
        check=False, stdin=subprocess.DEVNULL, env={**os.environ, **env},
    )  # fmt: skip
    if check:
        assert done.returncode == 0, f"labctl {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done


def copy_of_the_checkout(root: Path) -> Path:
    root.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(ROOT / name, root / name)
    return root


def runtime(root: Path) -> ComposeRuntime:
    return ComposeRuntime(Workspace(root, root / "cache"))


def leftovers(root: Path, stack: str = "iterative") -> list[str]:
    return runtime(root).leftovers(stack)


def server(root: Path, stack: str = "iterative") -> Any:
    """The server's container, or None."""
    found = docker_engine.containers(str(root), stack, "triton")
    return found[0] if found else None


def eventually(check: Callable[[], Any], timeout: float = 60.0) -> Any:
    """The first true value of ``check`` before the deadline."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{check} did not become true within {timeout:g} s")


def status(root: Path, stack: str = "iterative") -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(labctl("status", stack, "--json", root=root).stdout)
    return shown
