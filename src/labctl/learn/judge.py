"""Whether an exercise holds: what the learner's own server really did, with several seeds, in words."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labctl import secret
from labctl.errors import LabError
from labctl.learn import server
from labctl.learn.desk import files as files_of
from labctl.learn.exercise import Exercise
from labctl.learn.limits import Limits
from labctl.learn.progress import Progress
from labctl.learn.trial import Check, Explained, Stuck, Trial
from labctl.orchestrator import sound, stuck
from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.running import explainer
from labctl.orchestrator.session import Session
from labctl.runtimes.base import Record, Runtime
from labctl.workspace import Workspace, atomic_write

SEEDS = 2
MOST_LINES = 10
UNHEALTHY = "is not healthy"  # Triton's words for a stub that has ended, or has not said for a moment that it lives
FRAME = re.compile(r"\s+\S+\(\d+\): ")  # of Triton's "At:"
WHOSE = re.compile(r"Failed to process the request\(s\) for model '[^']*', message: ")


@dataclass(frozen=True)
class Outcome:
    """What one ``labctl exercise check`` measured, and what it means. ``sentence`` is the one to read first."""

    id: str
    passed: bool
    seeds: Sequence[int]
    checks: Sequence[Check]
    sentence: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(session: Session, exercise: Exercise, runtime: str = "auto", seeds: Sequence[int] = ()) -> Outcome:
    """Judge the learner's files.

    Args:
        seeds: one trial each; none means two that are drawn now.

    Raises:
        LabError: it was not begun, another check is in progress, or the server cannot be brought up for a reason that
            is not the learner's.
    """
    workspace = session.workspace
    files = files_of(exercise, workspace)
    seeds = list(seeds) or random.SystemRandom().sample(range(1, 100_000), SEEDS)
    with stack_lock(workspace, "exercises", "exercise check"):
        checks = _syntax(exercise, files) or _judged(session, exercise, files, runtime, seeds)
        failed = next((check for check in checks if not check.ok), None)
        held = f"everything holds, with {len(seeds)} seeds" if len(seeds) > 1 else "everything holds"
        sentence = failed.sentence if failed else f"{exercise.id}, {exercise.title}: {held}"
        outcome = Outcome(exercise.id, failed is None, seeds, checks, sentence)
        server.clean(workspace).parent.mkdir(parents=True, exist_ok=True)
        server.clean(workspace).touch() if outcome.passed else server.clean(workspace).unlink(missing_ok=True)
        Progress(workspace).checked(exercise.id, outcome.passed)
        atomic_write(_kept(workspace, exercise.id), json.dumps(outcome.to_json()))
        return outcome


def last(workspace: Workspace, id: str) -> Outcome | None:
    """The outcome of an exercise's last check; None before the first."""
    try:
        kept = json.loads(_kept(workspace, id).read_text(encoding="utf-8"))
        return Outcome(**{**kept, "checks": [Check(**check) for check in kept["checks"]]})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _kept(workspace: Workspace, id: str) -> Path:
    return workspace.state / "checks" / f"{id}.json"


def _syntax(exercise: Exercise, files: dict[str, Path]) -> list[Check]:
    """A mistake that Python sees without running anything: reported at once."""
    for name, path in files.items():
        if found := sound.mistake(path):
            text = f"{name}, line {found[0]}: {found[1]}"
            return [Check("the file", "Python that can be read", text, False, f"{text}.")]
    return []


def _judged(
    session: Session, exercise: Exercise, files: dict[str, Path], runtime: str, seeds: Sequence[int]
) -> list[Check]:
    try:
        runner, record = server.serve(session, exercise, files, runtime)
    except LabError as error:
        if not exercise.served:
            raise
        why = "; ".join(filter(None, (error.why, *error.details)))
        lines = _in_learners_files(why or error.what, session, exercise, None)
        return [Check("the model", "loads", error.what, False, lines)]
    function = _load(exercise)
    checks: list[Check] = []
    for seed in seeds:
        checks = _tried(function, seed, session, exercise, (runner, record))
        if any(UNHEALTHY in check.sentence + check.measured for check in checks):
            session.listener.note("Triton took a model for dead, as it does on a very busy machine: once more")
            checks = _tried(function, seed, session, exercise, (runner, record))
        if not all(check.ok for check in checks):
            break
    return checks


def _tried(
    function: Any, seed: int, session: Session, exercise: Exercise, running: tuple[Runtime, Record]
) -> list[Check]:
    """What one trial with that seed measures."""
    runner, record = running
    trial = Trial(
        seed, record.endpoints, session.workspace.run_dir(server.STACK), exercise.yours(session.workspace),
        record.settings, record.tokenizer_dir, exercise.manifest.patience,
        secret.read(session.workspace, server.STACK),
    )  # fmt: skip
    session.listener.step(f"exercise {exercise.id}, seed {seed}")
    with Limits(runner, record, exercise.manifest.memory_mib) as limits:
        _try(function, trial, limits, session, exercise, running)
    session.listener.done("holds" if trial.passed else "does not hold")
    return trial.checks


def _try(
    function: Any, trial: Trial, limits: Limits, session: Session, exercise: Exercise, running: tuple[Runtime, Record]
) -> None:
    """One trial; whatever goes wrong in it becomes an expectation that does not hold."""
    try:
        function(trial)
        if not trial.checks:
            raise LabError(f"the check of {exercise.id} expects nothing", "this is a fault of the exercise")
    except Stuck as error:
        loop = next(iter(stuck.stuck(trial.run_dir)), "")
        why = _in_learners_files(loop, session, exercise, running) or f"{error.what}: {exercise.manifest.stuck}"
        trial.expect("an answer", f"within {trial.patience:g} s", "none", False, limits.exceeded() or why)
        server.stop(session)
    except Explained as error:
        measured = _in_learners_files(error.why, session, exercise, running)
        trial.expect("an answer", "without an error", measured, False, limits.exceeded() or error.what)
    except LabError as error:
        why = _in_learners_files("; ".join(filter(None, (error.why, *error.details))), session, exercise, running)
        sentence = limits.exceeded() or f"{error.what}: {why}"
        trial.expect("an answer", "without an error", error.what, False, sentence)
    if limits.exceeded() and trial.passed:
        trial.expect("memory", f"at most {exercise.manifest.memory_mib:,} MiB", "more", False, limits.exceeded())


def _in_learners_files(text: str, session: Session, exercise: Exercise, running: tuple[Runtime, Record] | None) -> str:
    """The text with the served copy's paths as ``exercises/ID/...``; of a stack only the learner's own lines."""
    names = server.names(exercise)
    if running is not None:
        lab = server.lab_with(exercise, session.workspace)
        text = explainer(session, lab, *running, names)(text)
    for path, name in server.laid_over(exercise, session.workspace).items():
        text = text.replace(f"{session.workspace.root}/{path}", name).replace(path, name)
    for place, name in names.items():  # what cannot be rendered is named by its place in the repository
        text = re.sub(rf"(?<![\w/.-]){re.escape(place)}", name, text)
    lines = WHOSE.sub("", text.strip()).splitlines()
    if own := [line for line in lines if FRAME.match(line) and f"exercises/{exercise.id}/" in line]:
        lines = [line for line in lines if line in own or not FRAME.match(line)]
    return "\n".join(line for line in lines[:MOST_LINES] if line.strip())


def _load(exercise: Exercise) -> Any:
    """The function ``check`` of the exercise's ``check.py``."""
    path = exercise.folder / "check.py"
    spec = importlib.util.spec_from_file_location(f"exercise_{exercise.id}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with _bytecode_kept_out():
        spec.loader.exec_module(module)
    return module.check


@contextlib.contextmanager
def _bytecode_kept_out() -> Iterator[None]:
    """No ``__pycache__`` beside the exercise."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
