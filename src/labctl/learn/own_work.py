"""Whether a pass is the learner's own: a plain look at what the files say, and no race with those who hide it."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path

from labctl.learn.exercise import Exercise
from labctl.learn.outcome import Check
from labctl.stack import shipped
from labctl.workspace import Workspace
from labkit.errors import LabError

SOLUTION = "solution"
JUDGES = ("check.py", "properties.py", "outages.py", "exercise.yaml")


def of_the_solution(exercise: Exercise, files: dict[str, Path]) -> list[Check]:
    """The first line of a learner's file that imports the official solution or names its folder; [] where none does."""
    for name, path in files.items():
        if path.suffix == ".py" and (line := _names_solution(ast.parse(path.read_bytes()))):
            text = f"{exercise.place(name)}, line {line}, uses the official solution: write your own."
            return [Check("the file", "your own work", f"line {line}: the solution", False, text)]
    return []


def edited_judges(exercise: Exercise, workspace: Workspace) -> list[str]:
    """The files by which the exercise is judged that are not as shipped; [] for an exercise that was never shipped.

    A check may read files of another exercise of its lab, whose folder it names.
    """
    files = [path for name in (*JUDGES, "task.md") if (path := exercise.folder / name).exists()]
    check = (exercise.folder / "check.py").read_text(encoding="utf-8")
    read = [path for name in JUDGES for path in exercise.folder.parent.glob(f"*/{name}") if path.parent.name in check]
    with contextlib.suppress(LabError):  # a checkout that does not know what was shipped
        edited = shipped.edited_files(workspace, [*files, *read])
        if not {*files} <= {*edited}:
            return [path.relative_to(workspace.root).as_posix() for path in edited if path.name in JUDGES]
    return []


def _names_solution(tree: ast.Module) -> int | None:
    """The line of an import, or of a text that is a path, in which a part is called "solution"."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            parts = re.split(r"[/\\]", node.value)
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
        elif isinstance(node, ast.Import):
            parts = [part for alias in node.names for part in alias.name.split(".")]
        else:
            continue
        if SOLUTION in parts:
            return int(node.lineno)
    return None
