"""``labctl run`` and ``labctl up`` are killed (-9) at random moments; the next command leaves nothing of them.

Everything happens in a checkout of its own, made of links, with the lab of faults, whose servers start in a moment.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import psutil

from labctl import unfinished
from labctl.cli.commands import COMMANDS
from labctl.cli.main import main
from labctl.runtimes.leftovers import regions
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
STACK = "quick"
ON = ("--runtime", "local", "--ports", "auto")
BEFORE = {"run": ("run", "faults", *ON, "--set", "client_seconds=1"), "up": ("up", STACK, *ON)}
AFTER = {"run": ("list",), "up": ("down", STACK)}  # a server that `up` had started is meant to stay
SPREAD_S = 3.0  # a kill comes as late as this after the start, or after the first sign of a server
LATE = 0.5  # how many come after that sign
PATIENCE_S = 120.0
SEED = 11


def run(count: int) -> dict[str, Any]:
    """What was there when the kill came, and what the next command had to end; anything left is an error."""
    moments = random.Random(SEED)
    for command in (*BEFORE.values(), *AFTER.values()):
        importlib.import_module(f"labctl.cli.{COMMANDS[command[0]].module}")
    found: Counter[str] = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="labs-kills-") as folder:
        workspace = checkout(Path(folder))
        for number in range(count):
            name = ("run", "up")[number % 2]
            process = _labctl(workspace, *BEFORE[name])
            if moments.random() < LATE:
                _first_sign(workspace, process)
            time.sleep(moments.uniform(0, SPREAD_S))
            found[f"{name} {'was killed' if process.is_alive() else 'was over'}"] += 1
            process.kill()
            process.join()
            found["a server or a stub was there"] += bool(_processes(workspace))
            began = time.monotonic()
            after = _labctl(workspace, *AFTER[name])
            after.join(PATIENCE_S)
            if after.exitcode != 0:
                raise RuntimeError(f"kill {number}: labctl {' '.join(AFTER[name])} failed")
            slowest = max(slowest, time.monotonic() - began)
            if remains := left(workspace):
                raise RuntimeError(f"kill {number} of {name}: left behind: {', '.join(remains)}")
            if (number + 1) % 10 == 0:
                print(f"{number + 1} kills, nothing left; {dict(found)}", flush=True)
    for what, times in sorted(found.items()):
        print(f"{times:6}  {what}")
    print(f"after {count} kills and one command each, nothing was left; the slowest such command took {slowest:.1f} s")
    return {"count": count, "seed": SEED, "found": dict(found), "left": 0, "slowest_next_command_s": slowest}


def checkout(root: Path) -> Workspace:
    for name in ("pyproject.toml", "models"):
        (root / name).symlink_to(ROOT / name)
    for name, faults in (("labs", "tests/faults_lab"), ("model_repos", "tests/faults_lab/models")):
        (root / name).mkdir()
        for path in (ROOT / name).iterdir():
            (root / name / path.name).symlink_to(path)
        (root / name / ("99-faults" if name == "labs" else "faults")).symlink_to(ROOT / faults)
    return Workspace(root, root / "cache")


def _labctl(workspace: Workspace, *arguments: str) -> ForkProcess:
    """A labctl of its own. Forked from here, where its modules are imported: that is half of what a command costs."""
    process = multiprocessing.get_context("fork").Process(target=_command, args=(workspace, arguments))
    process.start()
    return process


def _command(workspace: Workspace, arguments: Sequence[str]) -> None:
    os.setsid()
    os.chdir(workspace.root)
    os.environ |= {"LABS_ROOT": str(workspace.root), "LABS_CACHE": str(workspace.cache)}
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    sys.exit(main([*arguments]))


def _first_sign(workspace: Workspace, process: ForkProcess) -> None:
    """Wait until there is something of the server, or the command has ended without one."""
    deadline = time.monotonic() + PATIENCE_S
    while process.is_alive() and not regions(workspace.root, STACK) and time.monotonic() < deadline:
        time.sleep(0.01)


def _processes(workspace: Workspace) -> list[str]:
    """Every process that works on that checkout: servers, stubs, clients."""
    return [
        f"{process.pid} {process.info['name']}"
        for process in psutil.process_iter(["name", "cmdline"])
        if process.pid != os.getpid() and str(workspace.root) in " ".join(process.info["cmdline"] or ())
    ]


def left(workspace: Workspace) -> list[str]:
    caches = workspace.caches
    folders = [path for place in (*workspace.state.glob("*"), *caches) for path in place.glob(f".*{unfinished.HELD}*")]
    return [*_processes(workspace), *LocalRuntime(workspace).leftovers(STACK), *map(str, folders)]
