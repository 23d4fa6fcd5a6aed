"""What the tests of whole stacks share: checkouts of their own, the real command line, a look at what is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
import psutil
from checkout import ROOT

from labctl.catalog import Catalog
from labctl.listener import Silent
from labctl.runtimes import docker_engine
from labctl.runtimes.base import Runtime
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Record
from labctl.stack.down import take_down
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.workspace import Workspace
from labkit.errors import LabError

PARTS = (
    ".dockerignore",
    "compose.yaml",
    "compose.gpu.yaml",
    "deploy",
    "docker",
    "labs",
    "model_repos",
    "pyproject.toml",
    "requirements",
    "src",
)
FAULTS = ROOT / "tests" / "faults_lab"


def of_its_own(folder: Path) -> Workspace:
    """A checkout with all of this one as links, and a state of its own: what is written goes there."""
    root = folder / "checkout"
    root.mkdir()
    for name in PARTS:
        (root / name).symlink_to(ROOT / name)
    return Workspace(root, folder / "cache")


def git(folder: Path, *words: str) -> None:
    """Run git in a folder, as an author who can commit. Raises CalledProcessError."""
    author = ("-c", "user.name=n", "-c", "user.email=e@x")
    subprocess.run(["git", "-C", str(folder), *author, *words], check=True, capture_output=True)


def committed(folder: Path, *more: str) -> None:
    """Make the folder a repository of git, with all that is in it committed; ``more``: options of ``git init``."""
    git(folder, "init", "-q", *more)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")


def labctl(*arguments: str, root: Path, timeout: float = 600, check: bool = True, **env: str) -> Any:
    """Run the real command line as a person does, to its end."""
    command = [sys.executable, "-m", "labctl", *arguments]
    words = {**os.environ, **env}
    done = subprocess.run(
        command,
        cwd=root,
        env=words,
        timeout=timeout,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if check:
        assert done.returncode == 0, f"labctl {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done


def taken_down(root: Path, *stacks: str) -> None:
    """Take these stacks of a checkout down, or all: at once, as ``labctl run`` does when its clients have ended.

    For the end of a test: Triton takes two or three seconds to end in good order, and tests of their own see to that.
    """
    session = Session(Workspace(root, root / "cache"), Catalog(()), Silent())
    names = stacks or session.look()[0]
    for name in ("local", "compose"):
        runner = session.runtime(name)
        there: list[str] = []
        with suppress(LabError):  # no engine answers
            there = [stack for stack in names if runner.leftovers(stack)]
        for stack in there:
            take_down(session, runner, stack, force=True)
    for stack in names:
        session.forget(stack)


@contextmanager
def started(root: Path, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """labctl in a process group of its own, as a terminal starts it; it does not outlive the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "labctl", *arguments],
        cwd=root,
        text=True,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def copy_of_the_checkout(root: Path, source: Path = ROOT) -> Path:
    """A checkout that a test may change and in which a person's stacks are not seen."""
    root.mkdir()
    for name in PARTS:
        if (source / name).is_dir():
            shutil.copytree(source / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source / name, root / name)
    return root


def with_faults_lab(root: Path) -> Path:
    """The same checkout with the lab of faults in it: stacks ``quick`` and ``quick-too``, up in a second or two."""
    shutil.copytree(FAULTS, root / "labs" / "99-faults", ignore=shutil.ignore_patterns("models"))
    shutil.copytree(FAULTS / "models", root / "model_repos" / "faults")
    return root


def share_server(root: Path) -> None:
    """Have the lab of faults share its server among its phases."""
    path = root / "labs" / "99-faults" / "lab.py"
    path.write_text(path.read_text().replace("run=run,", "run=run, share_server=True,"))


def runtime(root: Path, name: str = "compose") -> Runtime:
    workspace = Workspace(root, root / "cache")
    return LocalRuntime(workspace) if name == "local" else ComposeRuntime(workspace)


def names_left(root: Path) -> set[str]:
    """Return the names of all stacks of a checkout that may have left something behind, on either runtime."""
    return Session(Workspace(root, root / "cache"), Catalog(()), Silent()).look()[0]


def found(root: Path, stack: str) -> Record | None:
    """The record of a stack that is up, on either runtime."""
    running = RunningStack.find(Session(Workspace(root, root / "cache"), Catalog(()), Silent()), stack)
    return running.record if running else None


def engine() -> docker.DockerClient | str:
    """A usable Docker engine, or why there is none."""
    try:
        docker_engine.require_plugin()
        return docker_engine.engine()
    except LabError as error:
        return str(error)


def leftovers(root: Path, stack: str) -> list[str]:
    """What is still there of a stack on Docker."""
    return runtime(root).leftovers(stack)


def container(root: Path, stack: str) -> Any:
    """The server's container, or None."""
    found = docker_engine.containers(str(root), stack, "triton")
    return found[0] if found else None


def status(root: Path, stack: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(labctl("status", stack, "--json", root=root).stdout)
    return shown


def processes_about(root: Path) -> list[str]:
    """The command lines of all processes that work on this checkout (a compose child, a server)."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(root) in line and process.pid != os.getpid():
            found.append(line)
    return found
