"""The learner's folder: lay the starter out, or put it back, and lose nothing that a person wrote."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from labctl import litter
from labctl.learn.exercise import Exercise
from labctl.unfinished import replace_dir
from labctl.workspace import Workspace
from labkit.errors import LabError

TASK = "task.md"


def lay_out_exercise(exercise: Exercise, workspace: Workspace) -> Path:
    """Return the learner's folder, with the starter in it. An existing folder stays as it is."""
    folder = exercise.yours(workspace)
    if not folder.is_dir():
        with replace_dir(folder) as fresh:
            shutil.copytree(exercise.folder / "starter", fresh, dirs_exist_ok=True, ignore=litter.ignore)
            shutil.copyfile(exercise.folder / TASK, fresh / TASK)
    return folder


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
    lay_out_exercise(exercise, workspace)
    return kept


def files(exercise: Exercise, workspace: Workspace) -> dict[str, Path]:
    """The learner's files by name. Raises LabError: the exercise was not begun, or a file of it is gone."""
    folder = exercise.yours(workspace)
    if not folder.is_dir():
        raise LabError(
            f"exercise {exercise.id} was not started yet",
            "",
            f"labctl exercise start {exercise.id}",
            code="exercise-not-started",
        )
    missing = [name for name in exercise.manifest.files if not (folder / name).is_file()]
    if missing:
        raise LabError(
            f"exercises/{exercise.id}/{missing[0]} is gone",
            "the check needs every file of the exercise",
            f"labctl exercise reset {exercise.id} (your other files are kept beside it)",
            code="exercise-file-missing",
        )
    return {name: folder / name for name in exercise.manifest.files}


def stamps(exercise: Exercise, workspace: Workspace) -> list[int]:
    """When each of the learner's files was saved; 0 where it is gone."""
    paths = [exercise.yours(workspace) / name for name in exercise.manifest.files]
    return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]
