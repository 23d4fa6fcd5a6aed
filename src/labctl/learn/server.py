"""The one server that exercises are checked on: a lab's stack with the learner's files in place, kept up in between."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from labctl.lab import Lab, LabSettings, Place, Served
from labctl.learn import overlay
from labctl.learn.exercise import Exercise, find_exercises
from labctl.learn.progress import Progress
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes.base import Runtime
from labctl.runtimes.record import Record
from labctl.stack import faults
from labctl.stack.build import refuse_unservable
from labctl.stack.down import take_down
from labctl.stack.edits import find_edits, reload
from labctl.stack.faults import Explain
from labctl.stack.session import EXERCISE, Session
from labctl.stack.stack import RunningStack
from labctl.stack.up import up
from labctl.triton import readiness, server_api
from labctl.workspace import Workspace
from labkit.client import metrics
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.waiting import call_repeatedly

STACK = EXERCISE
LOOK_S = 0.5
LOAD_S = 150.0  # a model may take at least this long to load; if it never will, its watchdog says so before
STUCK_S = 3.0  # no request of a check takes this long: where an answer is missing, a longer execution is named


def lab_with(exercise: Exercise, workspace: Workspace) -> Lab:
    """The exercise's lab with one more stack: the learner's files laid over the lab's, without probes."""
    stack, manifest = exercise.home.stacks[exercise.manifest.stack], exercise.manifest
    models = manifest.models or stack.models
    layers = [exercise.folder / "models"] if (exercise.folder / "models").is_dir() else []
    if exercise.served:
        layers.append(workspace.folder(STACK).overlay)

    def serve(settings: LabSettings, at: Place) -> Served:
        served = stack.serve(settings, at)
        edits = [*served.replacements, *manifest.replacements]
        return replace(
            served,
            repository=[*served.repository, *map(str, layers)],
            models=models,
            replacements=[edit for edit in edits if edit.file.split("/", 1)[0] in models],
            probes={},
            env={**served.env, "LABS_STUCK_S": f"{STUCK_S:g}"},
        )

    own = replace(stack, name=STACK, models=models, serve=serve)
    return replace(exercise.home, serves=[*exercise.home.serves, own])


def serve_exercise(
    session: Session, exercise: Exercise, files: Mapping[str, Path], runtime: str | None
) -> RunningStack:
    """Bring the exercise's stack up with the learner's files as they are now.

    Raises LabError: it cannot be brought up, or a file of the learner's (which it names) cannot be loaded.
    """
    workspace, folder = session.workspace, session.workspace.folder(STACK)
    lab = lab_with(exercise, workspace)
    manifest = exercise.manifest
    options = Options(set=manifest.settings, runtime=runtime, ports="auto", replicas=manifest.replicas)
    overlay.fill_overlay(workspace, exercise, files)
    with _ended_by_a_loop(session):
        if running := RunningStack.find(session, STACK):
            usable = not manifest.fresh and server_api.is_live(running.record.endpoints.http)
            if usable and (reused := _for_this(exercise, lab, options, running)) and _free(running.record):
                edited = [*find_edits(reused)]
                if not folder.clean_file.exists():
                    edited += [model for model in overlay.touched_models(exercise) if model not in edited]
                try:
                    if edited:
                        reload(session, lab, STACK, edited, patience=max(LOAD_S, 3 * manifest.patience))
                    return reused
                except LabError as error:
                    if error.code != readiness.ABORTED:
                        raise
                session.listener.note(f"{readiness.ABORTED_WHY}: once more")
            stop_exercise_server(session)
        started = up(session, lab, STACK, options)
    atomic_write(folder.purpose_file, json.dumps(_purpose(exercise, started.plan)))
    return started


def refuse_runtime(session: Session, exercise: Exercise, runtime: str | None) -> None:
    """Raises LabError where an engine of its own cannot be served, whatever the learner has written."""
    options = Options(set=exercise.manifest.settings)
    plan = make_plan(session.workspace, lab_with(exercise, session.workspace), STACK, options)
    if plan.served.packages:
        refuse_unservable(plan, session.choose(runtime, "cpu"), session.workspace)


@contextlib.contextmanager
def _ended_by_a_loop(session: Session) -> Iterator[None]:
    """Take the server down when a model says that its import or ``initialize`` does not come back.

    Triton has no way to end such a load, and would load nothing else after it. Raises LabError: the file and the line,
    instead of what the load says.
    """
    loops: list[str] = []

    def look() -> None:
        if not loops and (found := faults.stuck_sentences(session.workspace.folder(STACK).run_dir())):
            loops.extend(found)
            stop_exercise_server(session)

    try:
        with call_repeatedly(look, LOOK_S, "loads"):
            yield
    except LabError as error:
        if loops:
            raise LabError("the model was not loaded", loops[0], code="model-not-loaded") from error
        if error.code == "model-load-slow":
            stop_exercise_server(session)
        raise


def _free(record: Record) -> bool:
    """Whether no request of an earlier check is left: a client that gave up may have one in Triton's queue."""
    with contextlib.suppress(LabError):
        return not any(model.pending for model in metrics.scrape(record.endpoints.metrics).models.values())
    return True


def in_your_files(session: Session, runtime: Runtime, record: Record) -> Explain:
    """A function that names the learner's files in a text instead of the served copies; for the last begun exercise."""
    exercises = find_exercises(session.workspace, session.catalog, lambda problem: None)
    current = Progress(session.workspace).current
    exercise = next((e for e in exercises if e.id == current and e.home.folder == record.lab), None)
    if exercise is None:
        return str
    stack = RunningStack.of(session, lab_with(exercise, session.workspace), runtime, record)
    return faults.stack_files(stack, overlay.served_files(exercise))


def resolve_stack(session: Session, word: str) -> str:
    """The stack of that name, or the exercises' own. Raises LabError."""
    return STACK if word == STACK else session.catalog.stack(word)[1]


def stop_exercise_server(session: Session) -> bool:
    """Take the exercise server down at once: no client waits for it. Returns False if none was up."""
    running = RunningStack.find(session, STACK)
    if running:
        take_down(session, running.runtime, STACK, force=True)
    for runtime in session.runtimes:  # a server that was ended may have left a container
        with contextlib.suppress(LabError):
            if runtime.leftovers(STACK):
                take_down(session, runtime, STACK, force=True)
    for note in session.workspace.folder(STACK).run_dir().glob("stuck-*.json"):  # a process that is gone wrote it
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
    return running is not None


def _for_this(exercise: Exercise, lab: Lab, options: Options, running: RunningStack) -> RunningStack | None:
    """The server that is up, with this exercise's settings; None where it takes another server.

    Settings that only the models read can be changed by loading these anew; the server need not start again.
    """
    session, runtime = running.session, running.runtime
    if options.runtime not in (None, runtime.name):
        return None
    with contextlib.suppress(OSError, ValueError, LabError):
        purpose = json.loads(running.folder.purpose_file.read_text(encoding="utf-8"))
        changed = running.in_lab(lab).with_options(options)
        if purpose == _purpose(exercise, changed.plan) and changed.plan.ready(session.workspace):
            record = changed.as_planned()
            session.remember(record)
            return RunningStack.of(session, lab, runtime, record)
    return None


def _purpose(exercise: Exercise, plan: Plan) -> dict[str, object]:
    """What the exercise's server is brought up for: a server with another purpose is not this exercise's."""
    return {
        "lab": exercise.home.folder,
        "stack": exercise.manifest.stack,
        "models": exercise.manifest.models,
        "replicas": exercise.manifest.replicas,
        "arguments": list(plan.server_args),
        "environment": dict(plan.server_env),
    }
