"""The learner's folder: lay the starter out, or put it back, and lose nothing that a person wrote."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from labctl import litter
from labctl.learn import growing
from labctl.learn.exercise import Exercise
from labctl.workspace import Workspace
from labkit.disk import atomic_write, replace_dir
from labkit.errors import LabError

TASK = "task.md"


def lay_out_exercise(exercise: Exercise, workspace: Workspace) -> Path:
    """Return the learner's folder, with the starter in it. An existing folder stays as it is."""
    folder = exercise.yours(workspace)
    if not folder.is_dir():
        with replace_dir(folder) as fresh:
            shutil.copytree(exercise.folder / "starter", fresh, dirs_exist_ok=True, ignore=litter.ignore)
            shutil.copyfile(exercise.folder / TASK, fresh / TASK)
            if exercise.manifest.grows:
                (fresh / growing.FILE).unlink()
                _grow(exercise, workspace, again=False)
    return folder


def _grow(exercise: Exercise, workspace: Workspace, again: bool) -> None:
    """Add the exercise's parts to the learner's own scheduler. A file that Python cannot read stays as it is."""
    path = workspace.root / growing.OWN
    path.parent.mkdir(exist_ok=True)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    with contextlib.suppress(SyntaxError):  # the check will say where
        atomic_write(path, growing.add_parts(text, exercise.texts("starter")[growing.FILE], again))


def reset(exercise: Exercise, workspace: Workspace) -> Path | None:
    """Put the starter back. Returns where the learner's own files are kept; None where there were none."""
    folder = exercise.yours(workspace)
    kept = None
    if folder.is_dir():
        name = f"{exercise.id}.{time.strftime('%Y%m%d-%H%M%S')}"
        kept, number = folder.with_name(name), 1
        while kept.exists():  # two in one second
            number += 1
            kept = folder.with_name(f"{name}-{number}")
        folder.rename(kept)
        own = workspace.root / growing.OWN
        if exercise.manifest.grows and own.is_file():
            shutil.copyfile(own, kept / growing.FILE)
            _grow(exercise, workspace, again=True)
    lay_out_exercise(exercise, workspace)
    return kept


def files(exercise: Exercise, workspace: Workspace) -> dict[str, Path]:
    """The learner's files by name. Raises LabError: the exercise was not begun, or a file of it is gone."""
    if not exercise.yours(workspace).is_dir():
        raise LabError(
            f"exercise {exercise.id} was not started yet",
            "",
            f"labctl exercise start {exercise.id}",
            code="exercise-not-started",
        )
    paths = {name: workspace.root / exercise.place(name) for name in exercise.manifest.files}
    if missing := [name for name, path in paths.items() if not path.is_file()]:
        raise LabError(
            f"{exercise.place(missing[0])} is gone",
            "the check needs every file of the exercise",
            f"labctl exercise reset {exercise.id} (your other files are kept beside it)",
            code="exercise-file-missing",
        )
    return paths


def left_out(
    exercise: Exercise, text: str, exercises: Sequence[Exercise], passed: Collection[str]
) -> Mapping[str, str]:
    """The parts of a scheduler that another exercise adds and that has not passed, each with that exercise's id.

    A check of this exercise leaves them out: there they are the labs' own. Raises SyntaxError.
    """
    others = [each for each in exercises if each.id not in passed and each.id != exercise.id]
    here = growing.parts(text)
    return {part: each.id for each in others for part in each.parts if part in here}


def copy_to_judge(files: Mapping[str, Path], without: Collection[str], to: Path) -> dict[str, Path]:
    """Copy the learner's files to a folder, without some parts of the scheduler."""
    with replace_dir(to) as fresh:
        for name, path in files.items():
            text = path.read_text(encoding="utf-8")
            atomic_write(fresh / name, growing.without(text, without) if name == growing.FILE else text)
    return {name: to / name for name in files}


def stamps(exercise: Exercise, workspace: Workspace) -> list[int]:
    """When each of the learner's files was saved; 0 where it is gone."""
    paths = [workspace.root / exercise.place(name) for name in exercise.manifest.files]
    return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]
