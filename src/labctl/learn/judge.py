"""Whether an exercise holds: what the learner's own server really did, with several seeds, in words."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import re
import runpy
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from labctl.learn import desk, faults, growing, server
from labctl.learn.attempts import SOLUTION
from labctl.learn.exercise import Exercise, find_exercises
from labctl.learn.outcome import Check, Explained, Missing, Slow, Stuck, TooBusy
from labctl.learn.progress import Progress
from labctl.learn.trial import Trial
from labctl.runtimes import docker_engine
from labctl.runtimes.groups import groups, model_processes
from labctl.runtimes.lock import Busy, stack_lock
from labctl.runtimes.record import Record
from labctl.stack import shipped
from labctl.stack.faults import stuck_sentences
from labctl.stack.session import Session
from labctl.stack.shipped import syntax_error
from labctl.stack.stack import RunningStack
from labctl.triton.readiness import ABORTED, UNHEALTHY
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.waiting import call_repeatedly

SEEDS = 2
MOST_SHOWN = 200  # characters that are shown of a value from a learner's file
# Ends a start or a load on a busy machine. Where a model's own code never ends, its watchdog says so before.
SLOW = ("model-load-slow", "not-ready-in-time", ABORTED)


@dataclass(frozen=True)
class Outcome:
    """What one ``labctl exercise check`` measured, and what it means. ``sentence`` is the one to read first."""

    id: str
    passed: bool
    seeds: Sequence[int]
    checks: Sequence[Check]
    sentence: str

    @property
    def verdict(self) -> str:
        return f"{'passed' if self.passed else 'not yet'}: {self.sentence}"

    def rows(self) -> list[str]:
        """A row for each expectation, with what each trial measured."""
        return [check.row() for check in self.checks]


def check_exercise(session: Session, exercise: Exercise, runtime: str | None, seeds: Sequence[int] = ()) -> Outcome:
    """Judge the learner's files.

    ``seeds``: one trial each; none means two that are drawn now. Raises LabError: it was not begun, another check is in
    progress, this machine lacks what it needs or is too busy, or the server cannot be brought up for a reason that is
    not the learner's. Then it is no attempt.
    """
    workspace = session.workspace
    files = desk.files(exercise, workspace)
    seeds = list(seeds) or random.SystemRandom().sample(range(1, 100_000), 1 if exercise.manifest.fresh else SEEDS)
    with stack_lock(workspace, "exercises", "exercise check"):
        checks = _syntax(exercise, files) or of_the_solution(exercise, files)
        if not checks:
            if exercise.manifest.grows:
                files, checks = _without_open_parts(session, exercise, files)
            checks = [*checks, *_judge(session, exercise, files, runtime, seeds)]
        failed = next((check for check in checks if not check.ok), None)
        held = f"everything holds, with {len(seeds)} seeds" if len(seeds) > 1 else "everything holds"
        if edited := edited_judges(exercise, workspace):
            held += f"; judged by files that are not as shipped ({', '.join(edited)})"
        sentence = failed.sentence if failed else f"{exercise.id}, {exercise.title}: {held}"
        outcome = Outcome(exercise.id, failed is None, seeds, checks, sentence)
        clean = workspace.folder(server.STACK).clean_file
        clean.parent.mkdir(parents=True, exist_ok=True)
        if outcome.passed:
            clean.touch()
        else:
            clean.unlink(missing_ok=True)
        Progress(workspace).record_check(exercise.id, outcome.passed)
        atomic_write(_outcome_file(workspace, exercise.id), json.dumps(asdict(outcome)))
        return outcome


def _without_open_parts(
    session: Session, exercise: Exercise, files: dict[str, Path]
) -> tuple[dict[str, Path], list[Check]]:
    """The files to judge, without parts of exercises that have not passed; and a row that names these."""
    workspace = session.workspace
    exercises = find_exercises(workspace, session.catalog, lambda problem: None)
    text = files[growing.FILE].read_text(encoding="utf-8")
    without = desk.left_out(exercise, text, exercises, Progress(workspace).all_passed)
    copies = desk.copy_to_judge(files, without, workspace.state / "judged" / exercise.id)
    parts = ", ".join(f"{part} ({id})" for part, id in without.items())
    told = "the labs' own"
    return copies, [Check(f"parts of exercises that have not passed: {parts}", told, told, True)] if parts else []


def last_outcome(workspace: Workspace, id: str) -> Outcome | None:
    """The outcome of an exercise's last check; None before the first."""
    try:
        return TypeAdapter(Outcome).validate_json(_outcome_file(workspace, id).read_bytes())
    except (OSError, ValueError):
        return None


def _outcome_file(workspace: Workspace, id: str) -> Path:
    return workspace.state / "checks" / f"{id}.json"


def _syntax(exercise: Exercise, files: dict[str, Path]) -> list[Check]:
    """What a look at the files finds, without running anything: a mistake of syntax, a part that is not there."""
    for name, path in files.items():
        if found := syntax_error(path):
            text = f"{name}, line {found[0]}: {found[1]}"
            return [Check("the file", "Python that can be read", text, False, f"{text}.")]
        here = growing.parts(path.read_text(encoding="utf-8")) if name == growing.FILE else {}
        if lost := [part for part in exercise.parts if here and part not in here]:
            text = f"{growing.OWN} has no {lost[0]}: labctl exercise reset {exercise.id} puts it there."
            return [Check("the file", lost[0], "none", False, text)]
    return []


def _judge(
    session: Session, exercise: Exercise, files: dict[str, Path], runtime: str | None, seeds: Sequence[int]
) -> list[Check]:
    server.refuse_runtime(session, exercise, runtime)
    try:
        running = server.serve_exercise(session, exercise, files, runtime)
    except LabError as error:
        if not exercise.served or isinstance(error, Busy):
            raise
        _excuse(error)
        why = "; ".join(filter(None, (error.why, *error.details)))
        lines = faults.in_learners_files(why or error.what, session, exercise, None)
        return [Check("the model", "loads", error.what, False, faults.locate_line(lines, exercise) or lines)]
    function = _load(exercise)
    checks: list[Check] = []
    for seed in seeds:
        if checks and exercise.manifest.fresh:
            running = server.serve_exercise(session, exercise, files, runtime)
        checks = _run_trial(function, seed, exercise, files, running)
        dead = any(UNHEALTHY in check.sentence + check.measured for check in checks)
        if dead and RunningStack.find(session, server.STACK):
            session.listener.note("Triton took a model for dead, as it does on a very busy machine: once more")
            running = server.serve_exercise(session, exercise, files, runtime) if exercise.manifest.fresh else running
            checks = _run_trial(function, seed, exercise, files, running)
        if not all(check.ok for check in checks):
            break
    return checks


def _excuse(error: LabError) -> None:
    """Raises TooBusy for an error that is this machine's, whatever the learner has written."""
    if error.code in SLOW:
        raise TooBusy(": ".join(filter(None, (error.what, error.why)))) from error


def _processes(running: RunningStack) -> Callable[[], Iterable[int]] | None:
    """The processes that serve an exercise and ask its server; None where they are not this machine's own."""
    members = [process.pid for group in groups(running.folder) for process in group.members()]
    return (lambda: (*members, os.getpid(), *(child.pid for child in psutil.Process().children()))) if members else None


def _run_trial(
    function: Any, seed: int, exercise: Exercise, files: Mapping[str, Path], running: RunningStack
) -> list[Check]:
    """What one trial with that seed measures."""
    session, record = running.session, running.record
    trial = Trial(
        seed,
        record.endpoints,
        session.workspace.folder(server.STACK).run_dir(),
        next(iter(files.values())).parent,
        record.settings,
        record.tokenizer_dir,
        exercise.manifest.patience,
        session.workspace.folder(server.STACK).read_secret(),
        tuple(replica.endpoints.grpc for replica in record.servers),
        _processes(running),
    )
    session.listener.step(f"checking exercise {exercise.id}, seed {seed}")
    with memory_limit(session.workspace, record) as describe_excess:
        _try(function, trial, describe_excess, exercise, running)
    if describe_excess():  # Triton starts the model's process again, with the request that took too much
        server.stop_exercise_server(session)
    session.listener.done("done")
    return trial.checks


def _try(
    function: Any, trial: Trial, describe_excess: Callable[[], str | None], exercise: Exercise, running: RunningStack
) -> None:
    """One trial; whatever goes wrong in it becomes an expectation that does not hold."""

    def in_own_files(text: str) -> str:
        return faults.in_learners_files(text, running.session, exercise, running)

    def fail(name: str, expected: str, measured: str, sentence: str) -> None:
        trial.expect(name, expected, measured, False, describe_excess() or sentence)

    explained = False
    try:
        function(trial)
        if not trial.checks:
            raise LabError(
                f"the check of {exercise.id} expects nothing",
                "this is a fault of the exercise",
                code="check-expects-nothing",
            )
    except (Missing, TooBusy):
        raise
    except Stuck as error:
        loop = next(iter(stuck_sentences(trial.run_dir)), "")
        usual = error.what if isinstance(error, Slow) else f"{error.what}: {exercise.manifest.stuck}"
        fail("an answer", f"within {trial.patience:g} s", "none", in_own_files(loop) or usual)
        server.stop_exercise_server(running.session)
    except Explained as error:
        explained = True
        measured = faults.headline(trial.faults(), exercise) or in_own_files(error.why)
        fail("an answer", "without an error", measured, error.what)
    except LabError as error:
        _excuse(error)
        why = in_own_files("; ".join(filter(None, (error.why, *error.details))))
        sentence = faults.locate_line(why, exercise) or ": ".join(filter(None, (error.what, why)))
        fail("an answer", "without an error", error.what, sentence)
    except Exception as error:
        sentence = explain_unreadable(error, exercise, trial)
        trial.expect("the check", "reads what your file gives", type(error).__name__, False, sentence)
    if excess := describe_excess():
        if trial.passed:
            fail("memory", f"at most {MOST_MIB:,} MiB", "more", excess)
    elif not explained and (fault := faults.headline(trial.faults(), exercise)):
        trial.checks.insert(0, Check("exceptions, and rules of Triton that were broken", "none", fault, False, fault))


def explain_unreadable(error: Exception, exercise: Exercise, trial: Trial) -> str:
    """What an exception of a ``check.py`` means: a value of the learner's that it cannot read, or its own fault."""
    exception = f"{type(error).__name__}: {error}"
    if trial.given is None:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        return f"the check of {exercise.id} failed ({exception}, line {line}): this is a fault of the exercise."
    source, value = trial.given
    text = repr(value)
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return f"{source} gave {shown}, which is not what task.md asks for ({exception})."


def _load(exercise: Exercise) -> Any:
    """The function ``check`` of the exercise's ``check.py``; nothing compiled is left beside it."""
    return runpy.run_path(str(exercise.folder / "check.py"))["check"]


LOOK_S = 0.25
MOST_MIB = 3072  # of one model's process


@contextlib.contextmanager
def memory_limit(workspace: Workspace, record: Record) -> Iterator[Callable[[], str | None]]:
    """Watch a server's processes for the time of a block; yields what says in words what happened, if it did.

    On this machine the process that takes too much is killed, and the server lives. In a container its number is not
    known here, so the whole server is killed.
    """
    limit, stopped = MOST_MIB * 2**20, False

    def look() -> None:
        nonlocal stopped
        if record.runtime == "local":
            for process in model_processes(workspace.folder(record.stack)):
                with contextlib.suppress(psutil.Error):
                    if process.memory_info().rss > limit:
                        stopped = True  # before its end shows
                        process.kill()
            return
        with contextlib.suppress(LabError):
            servers = docker_engine.containers(str(workspace.root), record.stack, "triton")
            if not stopped and any(docker_engine.largest_process_bytes(server) > limit for server in servers):
                stopped = True
                with docker_engine.engine_failures("ending a container"):
                    for server in servers:
                        server.kill()

    def describe_excess() -> str | None:
        taken = f"a model took more than {MOST_MIB:,} MiB of memory and was stopped"
        return f"{taken}: does something grow without an end?" if stopped else None

    with call_repeatedly(look, LOOK_S, "limits"):
        yield describe_excess


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
