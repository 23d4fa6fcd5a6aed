"""Where a bundle is gathered, beside its target; what a killed ``bundle create`` left there is swept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from labctl import unfinished
from labctl.workspace import Workspace
from labkit.disk import atomic_write

ENDED_S = 5.0


@contextlib.contextmanager
def staging(workspace: Workspace, target: Path) -> Iterator[Path]:
    """A folder beside ``target`` for the time of a block. Its place is noted: a target may be anywhere."""
    _write(workspace, {*noted(workspace), target.absolute()})
    with unfinished.making(target) as folder:
        yield folder
    _write(workspace, {*noted(workspace)} - {target.absolute()})


def sweep(workspace: Workspace) -> list[str]:
    """End what still works in the folders of killed commands, and remove them; the folders."""
    return [folder for target in noted(workspace) for folder in unfinished.sweep_beside(target, _end_those_in)]


def noted(workspace: Workspace) -> list[Path]:
    """The targets of bundles that were begun and have not ended well."""
    try:
        return [Path(line) for line in note(workspace).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []


def note(workspace: Workspace) -> Path:
    return workspace.state / "bundles"


def _write(workspace: Workspace, targets: set[Path]) -> None:
    if targets:
        atomic_write(note(workspace), "".join(f"{target}\n" for target in sorted(targets)))
    else:
        note(workspace).unlink(missing_ok=True)


def _end_those_in(folder: Path) -> None:
    """A download outlives the shell that was killed with labctl."""
    working = []
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] and Path(process.info["cwd"]).is_relative_to(folder):
            with contextlib.suppress(psutil.Error):
                process.kill()
                working.append(process)
    psutil.wait_procs(working, ENDED_S)
