"""labctl exercise and labctl learn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from labctl.catalog import told_after
from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import is_terminal, say
from labctl.learn import desk
from labctl.learn.exercise import Exercise, counted_exercises, find_exercise, find_exercises
from labctl.learn.progress import NEW, PASSED, Progress
from labctl.runtimes.lock import stack_lock
from labctl.stack.session import Session
from labkit.errors import LabError
from labkit.tables import format_table
from labsched.printable import printable

BAR = 30  # columns
runtime_option = opt.runtime_option("Run the exercise server in a container, or as a process of this machine.")


class Group(click.Group):
    """Its commands in the order of a learner's day."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("exercise", cls=Group)
def exercise_command() -> None:
    """Write the lines yourself; your own running server is the judge."""


def _open(verbose: bool = False) -> tuple[Session, list[Exercise], Progress]:
    session = opt.open_session(verbose)

    def leave_out(problem: str) -> None:
        session.listener.note(f"left out: {problem}")

    return session, find_exercises(session.workspace, session.catalog, leave_out), Progress(session.workspace)


def _chosen(exercises: list[Exercise], progress: Progress, id: str | None) -> Exercise:
    if chosen := id or progress.current:
        return find_exercise(exercises, chosen)
    raise LabError("no exercise was started yet", "", "labctl exercise next", code="exercise-none-started")


@exercise_command.command("list")
@click.argument("lab", required=False, shell_complete=completion.labs)
@opt.as_json
def exercise_list_command(lab: str | None, json_output: bool) -> None:
    """List every exercise, or those of LAB, and how far you are."""
    session, exercises, progress = _open()
    exercises = _of_lab(session, exercises, lab)
    entries = progress.entries()
    rows = [
        {"id": e.id, "lab": e.lab.short, "title": e.title, "kind": e.manifest.kind, "minutes": e.manifest.minutes}
        | {"state": entries[e.id].state if e.id in entries else NEW, "core": e.core}
        for e in exercises
    ]
    if json_output:
        click.echo(json.dumps(rows, indent=2))
        return
    columns = ("id", "lab", "title", "kind", "min", "state")
    counted = counted_exercises(exercises)
    for core, heading in ((True, f"LLM serving in one afternoon, {_length_of(counted)}"), (False, "\nMore of this")):
        cells = [tuple(row.values())[:-1] for row in rows if row["core"] == core]
        if cells:
            click.echo(f"{heading}\n{format_table(cells, columns, right=(4,))}")
    passed = progress.passed(counted)
    done = round(BAR * passed / len(counted)) if counted else 0
    click.echo(f"\n[{'#' * done}{'.' * (BAR - done)}]  {passed} of {len(counted)} passed")


def _length_of(exercises: Sequence[Exercise]) -> str:
    """How long these take, in words."""
    minutes = sum(exercise.manifest.minutes for exercise in exercises)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _of_lab(session: Session, exercises: list[Exercise], lab: str | None) -> list[Exercise]:
    """Those of one lab, by its name, number or stack; all of them without one. Raises LabError for an unknown name."""
    if not lab:
        return exercises
    folder = session.catalog.lab(lab).folder
    return [exercise for exercise in exercises if exercise.lab.folder == folder]


@exercise_command.command("start")
@click.argument("id", shell_complete=completion.exercises)
def start_command(id: str) -> None:
    """Lay out the starter of exercise ID in exercises/ID/."""
    session, exercises, progress = _open()
    _start(session, find_exercise(exercises, id), progress)


def _start(session: Session, exercise: Exercise, progress: Progress) -> None:
    folder = desk.lay_out_exercise(exercise, session.workspace).relative_to(session.workspace.root)
    progress.start(exercise.id)
    names = ", ".join(map(exercise.place, exercise.manifest.files))
    say(f"{exercise.id}  {exercise.title}  ({exercise.manifest.kind}, about {exercise.manifest.minutes} min)")
    say(f"Read {folder}/{desk.TASK}, then edit {names}.")
    say(f"Then: labctl exercise check {exercise.id}   (stuck? labctl exercise hint)")
    if address := opt.at_jupyter(f"lab/workspaces/{exercise.id}"):
        from labctl.learn.seat import lay_side_by_side

        lay_side_by_side(exercise, exercise.id)
        say(f"Side by side in JupyterLab: {address}")


@exercise_command.command("check")
@click.argument("id", required=False, shell_complete=completion.exercises)
@opt.as_json
@click.option(
    "--seed",
    "seeds",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Seed for prompts, lengths and arrival order; may be repeated.",
)
@runtime_option
@opt.verbose
@click.pass_context
def check_command(
    ctx: click.Context, id: str | None, json_output: bool, seeds: tuple[int, ...], runtime: str | None, verbose: bool
) -> None:
    """Judge exercise ID by what your server does; without ID the one started last."""
    from labctl.learn.judge import check_exercise

    session, exercises, progress = _open(verbose)
    exercise = _chosen(exercises, progress, id)
    outcome = check_exercise(session, exercise, runtime, seeds)
    if json_output:
        click.echo(json.dumps(asdict(outcome), indent=2))
    else:
        for line in (*outcome.rows(), "", outcome.verdict):
            say(printable(line), hanging="    ")
        if outcome.passed:
            _offer(session, exercise, exercises, progress)
    ctx.exit(0 if outcome.passed else 1)


def _offer(session: Session, passed: Exercise, exercises: list[Exercise], progress: Progress) -> None:
    """What comes after a pass: how far one is, the next exercise, and the solution to compare with."""
    core = counted_exercises(exercises)
    if passed.core:
        say(f"{progress.passed(core)} of {len(core)}")
        for line in told_after(session.catalog.course, passed.id, progress.all_passed):
            say(line, hanging="    ")
    if following := progress.next_open(exercises, passed.id):
        say(f"next: labctl exercise next   ({following.id}, {following.title})")
    say(f"to compare: labctl exercise solution {passed.id}")


@exercise_command.command("hint")
@click.argument("id", required=False, shell_complete=completion.exercises)
def hint_command(id: str | None) -> None:
    """Show one hint more each time, from a nudge to nearly the answer."""
    _, exercises, progress = _open()
    exercise = _chosen(exercises, progress, id)
    hints = exercise.manifest.hints
    shown = progress.show_hint(exercise.id, len(hints))
    more = f"{len(hints) - shown} more" if shown < len(hints) else "this was the last one"
    say(f"hint {shown} of {len(hints)} ({more}): {hints[shown - 1]}")


@exercise_command.command("reset")
@click.argument("id", shell_complete=completion.exercises)
def reset_command(id: str) -> None:
    """Put the starter back; what you wrote is kept beside it."""
    session, exercises, _ = _open()
    exercise = find_exercise(exercises, id)
    kept = desk.reset(exercise, session.workspace)
    where = f"; yours is in {kept.relative_to(session.workspace.root)}" if kept else ""
    say(f"the starter is back in {', '.join(map(exercise.place, exercise.manifest.files))}{where}")


@exercise_command.command("solution")
@click.argument("id", shell_complete=completion.exercises)
@click.option("--give-up", is_flag=True, help="Show it although the exercise has not passed.")
def solution_command(id: str, give_up: bool) -> None:
    """Show the solution, after the exercise has passed."""
    _, exercises, progress = _open()
    exercise = find_exercise(exercises, id)
    if progress.of(exercise.id).state != PASSED and not give_up:
        raise LabError(
            f"{exercise.id} has not passed yet",
            "its solution is shown afterwards",
            f"labctl exercise hint {exercise.id}, or labctl exercise solution {exercise.id} --give-up",
            code="solution-locked",
        )
    for name, text in exercise.texts("solution").items():
        click.echo(f"--- {name}\n{text}")


@exercise_command.command("next")
def next_command() -> None:
    """Start the next exercise of the course, or the one started last if it was never checked.

    After the course's own come the others.
    """
    session, exercises, progress = _open()
    if exercise := progress.to_go_on(exercises):
        _start(session, exercise, progress)
    else:
        click.echo(f"all {len(exercises)} exercises have passed")


@exercise_command.command("stop")
def stop_command() -> None:
    """Take the exercise server down."""
    from labctl.learn.server import stop_exercise_server

    session, _, _ = _open()
    with stack_lock(session.workspace, "exercises", "exercise stop"):  # not under a check that is in progress
        stopped = stop_exercise_server(session)
        click.echo("the exercise server is down" if stopped else "no exercise server is up")


@exercise_command.command("verify")
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=completion.exercises)
@click.option("--all", "every", is_flag=True, help="All answers of every exercise.")
@click.option(
    "--since",
    metavar="COMMIT",
    help="All answers of the exercises that were touched since this branch left COMMIT; of the others the solution.",
)
@opt.number_option("--seeds", 1, "Judge each answer with N seeds: the solution with 1 to N.", click.IntRange(min=1))
@runtime_option
@click.option("--strict", is_flag=True, help="Fail also where this machine lacks what an exercise needs.")
@click.pass_context
def verify_command(
    ctx: click.Context,
    ids: tuple[str, ...],
    every: bool,
    since: str | None,
    seeds: int,
    runtime: str | None,
    strict: bool,
) -> None:
    """For authors: check that starter and wrong answers fail as foreseen, and that the solution passes.

    It works on a copy: nothing in exercises/ changes.
    """
    from labctl.learn import verify

    session, exercises, _ = _open()
    chosen = {find_exercise(exercises, id).id for id in ids} or {exercise.id for exercise in exercises}
    if sum((bool(ids), every, since is not None)) != 1:
        raise click.UsageError("name exercises, or give one of --all and --since")
    whole = chosen if since is None else verify.changed_exercises(exercises, session.workspace, since)
    right = wrong = left_out = 0
    for proof in verify.verify(session, chosen, whole, runtime, seeds):
        if proof.left_out:
            left_out += 1
            mark = "left out"
        elif proof.problem:
            wrong += 1
            mark = "NO"
        else:
            right += 1
            mark = "ok"
        finding = proof.problem or f"{proof.answer}  {proof.seconds:.1f} s"
        say(printable(f"{mark}  {proof.exercise}  {finding}"), hanging="    ")
    click.echo(f"{right} of {right + wrong} answers were judged as foreseen")
    if left_out:
        click.echo(f"left out, because this machine lacks what they need: {left_out} exercises")
    proven = right and not wrong and not (strict and left_out)
    ctx.exit(0 if proven else 1)


@click.command("learn")
@click.argument("lab", required=False, shell_complete=completion.labs)
@runtime_option
def learn_command(lab: str | None, runtime: str | None) -> None:
    """Show exercises as one screen: the task and the last check; check again whenever you save a file.

    LAB may be `ladder`: the exam of my/scheduler.py, by its goodput on four loads.
    """
    from labctl.cli import ladder
    from labctl.cli.learn_screen import LearnScreen

    session, exercises, progress = _open()
    if lab == ladder.WORD:
        ladder.climb(session.workspace)
        return
    exercises = _of_lab(session, exercises, lab)
    if not exercises:
        raise LabError("there are no exercises here", "", "labctl exercise list", code="exercises-none")
    if not is_terminal():
        raise LabError(
            "labctl learn needs a terminal",
            "",
            "labctl exercise next, then labctl exercise check",
            code="terminal-needed",
        )
    LearnScreen(session, exercises, progress, runtime).run()
