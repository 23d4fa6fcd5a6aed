"""The one server that exercises are checked on: a lab's stack with the learner's files in place, kept up in between."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from labctl import repository, server_api
from labctl.errors import LabError
from labctl.learn import idle
from labctl.learn.exercise import Exercise, find_all
from labctl.learn.progress import Progress
from labctl.manifest.schema import Lab
from labctl.orchestrator import running
from labctl.orchestrator.down import take_down
from labctl.orchestrator.edits import edited, reload
from labctl.orchestrator.faults import Explain
from labctl.orchestrator.plan import Choices, Plan, make_plan
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import UpOptions, up
from labctl.runtimes.base import Record, Runtime
from labctl.workspace import Workspace, atomic_write, replace_dir

STACK = "exercise"
STUCK_S = 3.0  # an execution that takes longer is named where an answer is missing; nothing is asked here that takes it


def lab_with(exercise: Exercise, workspace: Workspace) -> Lab:
    """The exercise's lab with a stack more: its own, with the learner's files laid over it, without probes."""
    stack, manifest = exercise.lab.stacks[exercise.manifest.stack], exercise.manifest
    models = manifest.models or stack.models
    own = stack.model_copy(
        update={
            "repository": [*stack.repository, str(_overlay(workspace))] if exercise.served else stack.repository,
            "models": models,
            "replacements": [
                edit for edit in (*stack.replacements, *manifest.replacements) if edit.file.split("/", 1)[0] in models
            ],
            "probes": {},
            "server": stack.server.model_copy(update={"env": {**stack.server.env, "LABS_STUCK_S": f"{STUCK_S:g}"}}),
        }
    )
    return exercise.lab.model_copy(update={"stacks": {**exercise.lab.stacks, STACK: own}})


def serve(session: Session, exercise: Exercise, files: Mapping[str, Path], runtime: str) -> tuple[Runtime, Record]:
    """The exercise's stack, up, with the learner's files as they are now.

    Args:
        runtime: with ``auto`` the one that was asked for last, so that no server comes up elsewhere than those before.

    Raises:
        LabError: it cannot be brought up, or a file of the learner's (which it names) cannot be loaded.
    """
    workspace = session.workspace
    lab = lab_with(exercise, workspace)
    manifest = exercise.manifest
    wanted = _kept_to(workspace, runtime)
    options = UpOptions(Choices(set=manifest.settings), wanted, ports="auto", replicas=manifest.replicas)
    _lay_over(session, exercise, files)
    if there := session.find(STACK):
        lives = server_api.is_live(there[1].endpoints.http)
        if lives and (record := _for_this(session, exercise, lab, options, *there)):
            anew = [edit.model for edit in edited(session, lab, there[0], record)]
            if used(workspace).exists() and not clean(workspace).exists():
                anew += [m for m in _touched(exercise) if m not in anew]
            if anew:
                reload(session, lab, STACK, anew, patience=_patience(exercise))
            used(workspace).touch()
            return there[0], record
        stop(session)
    started = up(session, lab, STACK, options)
    plan = running.plan_of(session, lab, started.runtime, started.record)
    atomic_write(_purpose_file(workspace), json.dumps(_purpose(exercise, plan)))
    idle.watch(workspace)
    return started.runtime, started.record


def in_your_files(session: Session, runtime: Runtime, record: Record) -> Explain:
    """What puts the learner's files in the place of the served copies, for the exercise that was begun last."""
    exercises = find_all(session.workspace, session.catalog)
    current = Progress(session.workspace).current
    exercise = next((e for e in exercises if e.id == current and e.lab.folder == record.lab), None)
    if exercise is None:
        return str
    return running.in_your_files(session, lab_with(exercise, session.workspace), runtime, record, names(exercise))


def stack_named(session: Session, word: str) -> str:
    """The stack of that name, or the exercises' own. Raises LabError."""
    return STACK if word == STACK else session.catalog.stack(word)[1]


def names(exercise: Exercise) -> dict[str, str]:
    """The learner's files as a person calls them, by their place in the model repository."""
    return {place: f"exercises/{exercise.id}/{name}" for place, name in exercise.served.items()}


def laid_over(exercise: Exercise, workspace: Workspace) -> dict[str, str]:
    """The same names by the path, below the checkout, of the copy that is laid over the lab's own files."""
    overlay = _overlay(workspace).relative_to(workspace.root).as_posix()
    return {f"{overlay}/{place}": name for place, name in names(exercise).items()}


def stop(session: Session) -> bool:
    """Take the exercise server down; False where none was up. Nobody waits for an answer of it, so at once."""
    there = session.find(STACK)
    if there:
        take_down(session, there[0], STACK, force=True)
    return there is not None


def forget_runtime(workspace: Workspace) -> None:
    """With ``auto`` any runtime will do again."""
    _asked(workspace).unlink(missing_ok=True)


def _kept_to(workspace: Workspace, runtime: str) -> str:
    if runtime == "auto":
        with contextlib.suppress(OSError):
            return _asked(workspace).read_text(encoding="utf-8")
        return runtime
    atomic_write(_asked(workspace), runtime)
    return runtime


def _asked(workspace: Workspace) -> Path:
    return workspace.stack_dir(STACK) / "runtime"


def used(workspace: Workspace) -> Path:
    """Touched at every check: the server goes when this is old. Holds whose watcher looks at it."""
    return workspace.stack_dir(STACK) / "used"


def clean(workspace: Workspace) -> Path:
    """There while the models have nothing left of an earlier check that failed."""
    return workspace.stack_dir(STACK) / "clean"


def _patience(exercise: Exercise) -> float:
    return max(60.0, 3 * exercise.manifest.patience)


def _touched(exercise: Exercise) -> list[str]:
    return sorted({place.split("/", 1)[0] for place in exercise.served})


def _for_this(
    session: Session, exercise: Exercise, lab: Lab, options: UpOptions, runtime: Runtime, record: Record
) -> Record | None:
    """The record of the server that is up, with this exercise's settings; None where it takes another server.

    Settings that only the models read can be changed by loading these anew; the server need not start again.
    """
    with contextlib.suppress(OSError, ValueError, LabError):
        purpose = json.loads(_purpose_file(session.workspace).read_text(encoding="utf-8"))
        plan = make_plan(session.workspace, lab, STACK, options.choices, runtime.server_path)
        if (
            purpose == _purpose(exercise, plan)
            and all(step.ready() for step in plan.steps)
            and options.runtime in ("auto", runtime.name)
        ):
            record = replace(record, settings=plan.settings, effective=plan.effective, tokenizer_dir=plan.tokenizer_dir)
            session.remember(record)
            return record
    return None


def _purpose(exercise: Exercise, plan: Plan) -> dict[str, object]:
    """What a server must have been brought up for to be this exercise's."""
    return {
        "lab": exercise.lab.folder, "stack": exercise.manifest.stack, "models": exercise.manifest.models,
        "replicas": exercise.manifest.replicas,
        "arguments": list(plan.server_args), "environment": dict(plan.server_env),
    }  # fmt: skip


def _purpose_file(workspace: Workspace) -> Path:
    return workspace.stack_dir(STACK) / "purpose.json"


def _overlay(workspace: Workspace) -> Path:
    return workspace.stack_dir(STACK) / "overlay"


def _lay_over(session: Session, exercise: Exercise, files: Mapping[str, Path]) -> None:
    """The touched models' templates with the learner's files in their places."""
    workspace = session.workspace
    if not exercise.served:
        return
    request = make_plan(
        workspace, exercise.lab, exercise.manifest.stack, Choices(set=exercise.manifest.settings), str
    ).request
    touched = _touched(exercise)
    with replace_dir(_overlay(workspace)) as fresh:
        for place, origin in repository.origins(request).items():
            if place.split("/", 1)[0] in touched:
                target = fresh / place
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(files[exercise.served[place]] if place in exercise.served else origin, target)
        for place, name in exercise.served.items():
            target = fresh / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files[name], target)
