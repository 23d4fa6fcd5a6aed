"""Holds a manifest against itself: whatever can be known when it is read is refused here, by key and reason.

References, conditions, the values that stacks and phases set, names, files. What only a rendering or a server can
tell (a template's placeholders, a model's tensors) is told there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labctl.manifest.checks import runs, stacks, values
from labctl.manifest.schema import Lab
from labctl.workspace import Workspace


def problems(lab: Lab, folder: str) -> list[str]:
    """Everything that is wrong with a manifest of the right shape, one line each: key, then reason.

    Args:
        folder: the name of the lab's own.
    """
    problems = [] if folder == lab.folder else [f"number and name say {lab.folder}, the folder is {folder}"]
    bad_values = list(values.problems(lab))
    problems += bad_values
    for name, stack in lab.stacks.items():
        problems += stacks.problems(lab, f"stacks.{name}", stack)
    if not bad_values:  # what follows resolves settings, and so needs good conditions
        for name, stack in lab.stacks.items():
            problems += stacks.every_case(lab, f"stacks.{name}", stack)
        problems += runs.problems(lab)
    return list(dict.fromkeys(problems))


def missing(lab: Lab, folder: Path, workspace: Workspace) -> Iterator[str]:
    """The files and folders that a manifest names and that are not there, in the same words.

    Args:
        folder: the lab's own.
    """
    for name, stack in lab.stacks.items():
        yield from stacks.missing(lab, f"stacks.{name}", stack, workspace)
    yield from runs.missing(lab, folder)
