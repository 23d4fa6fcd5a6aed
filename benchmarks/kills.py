"""``labctl run`` and ``labctl up`` are killed (-9) at random moments; the next command leaves nothing of them.

Everything happens in a checkout of its own, made of links, with the lab of faults, whose servers start in a moment.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from labctl import unfinished
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
STACK = "quick"
ON = ("--runtime", "local", "--ports", "auto")
BEFORE = {"run": ("run", "faults", *ON, "--set", "client_seconds=1"), "up": ("up", STACK, *ON)}
AFTER = {"run": ("list",), "up": ("down", STACK)}  # a server that `up` had started is meant to stay
LONGEST_S = 6.0  # a whole run takes about that long
SEED = 11


def run(count: int) -> dict[str, Any]:
    """What was there when the kill came, and what the next command had to end; anything left is an error."""
    moments = random.Random(SEED)
    found: Counter[str] = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="labs-kills-") as folder:
        workspace = _checkout(Path(folder))
        for number in range(count):
            name = ("run", "up")[number % 2]
            process = _labctl(workspace, *BEFORE[name])
            time.sleep(moments.uniform(0, LONGEST_S))
            found[f"{name} {'was over' if process.poll() is not None else 'was killed'}"] += 1
            process.kill()
            process.wait()
            found["a server or a stub was there"] += bool(_processes(workspace))
            began = time.monotonic()
            if _labctl(workspace, *AFTER[name]).wait(60):
                raise RuntimeError(f"kill {number}: labctl {' '.join(AFTER[name])} failed")
            slowest = max(slowest, time.monotonic() - began)
            if left := _left(workspace):
                raise RuntimeError(f"kill {number} of {name}: left behind: {', '.join(left)}")
            if (number + 1) % 10 == 0:
                print(f"{number + 1} kills, nothing left", flush=True)
    for what, times in sorted(found.items()):
        print(f"{times:6}  {what}")
    print(f"after {count} kills and one command each, nothing was left; the slowest such command took {slowest:.1f} s")
    return {"count": count, "seed": SEED, "found": dict(found), "left": 0, "slowest_next_command_s": slowest}


def _checkout(root: Path) -> Workspace:
    for name in ("pyproject.toml", "models"):
        (root / name).symlink_to(ROOT / name)
    for name, faults in (("labs", "tests/faults_lab"), ("model_repos", "tests/faults_lab/models")):
        (root / name).mkdir()
        for path in (ROOT / name).iterdir():
            (root / name / path.name).symlink_to(path)
        (root / name / ("99-faults" if name == "labs" else "faults")).symlink_to(ROOT / faults)
    return Workspace(root, root / "cache")


def _labctl(workspace: Workspace, *arguments: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "LABS_ROOT": str(workspace.root), "LABS_CACHE": str(workspace.cache)}
    command = [sys.executable, "-m", "labctl", *arguments]
    return subprocess.Popen(
        command, cwd=workspace.root, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _processes(workspace: Workspace) -> list[str]:
    """Every process that works on that checkout: servers, stubs, clients."""
    return [
        f"{process.pid} {process.info['name']}"
        for process in psutil.process_iter(["name", "cmdline"])
        if process.pid != os.getpid() and str(workspace.root) in " ".join(process.info["cmdline"] or ())
    ]


def _left(workspace: Workspace) -> list[str]:
    caches = (workspace.weights_cache, workspace.engines_cache, workspace.backends_cache)
    folders = [path for place in (*workspace.state.glob("*"), *caches) for path in place.glob(f".*{unfinished.NEW}*")]
    return [*_processes(workspace), *LocalRuntime(workspace).leftovers(STACK), *map(str, folders)]
