"""Holds a manifest against itself: whatever can be known when it is read is refused here, by key and reason.

References, conditions, the values that stacks and phases set, names, files. What only a rendering or a server can
tell (a template's placeholders, a model's tensors) is told there.
"""

from __future__ import annotations

from pathlib import Path

from labctl.manifest.checks import runs, stacks, values
from labctl.manifest.schema import Lab
from labctl.workspace import Workspace


def problems(lab: Lab, folder: Path, workspace: Workspace) -> list[str]:
    """Everything that is wrong with a manifest of the right shape, one line each: key, then reason.

    Args:
        folder: the lab's own.
    """
    problems = [] if folder.name == lab.folder else [f"number and name say {lab.folder}, the folder is {folder.name}"]
    bad_values = list(values.problems(lab))
    problems += bad_values
    for name, stack in lab.stacks.items():
        problems += stacks.problems(lab, f"stacks.{name}", stack, workspace)
    if not bad_values:  # what follows resolves settings, and so needs good conditions
        for name, stack in lab.stacks.items():
            problems += stacks.every_case(lab, f"stacks.{name}", stack)
        problems += runs.problems(lab, folder)
    return list(dict.fromkeys(problems))
