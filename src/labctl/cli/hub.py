"""labctl hub: a class on JupyterHub."""

from __future__ import annotations

import time

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.learn.classroom import Classroom
from labctl.learn.exercise import find_exercises
from labctl.learn.room import TEACHER
from labctl.learn.standing import standings
from labctl.runtimes.lock import stack_lock
from labkit.errors import LabError
from labkit.tables import format_table

PORT = 8888
ENDED = (0, 130, -2)  # exit statuses of a JupyterHub that ended by itself, or by Ctrl-C


@click.group("hub")
def hub_command() -> None:
    """Run a class on JupyterHub: JupyterLab with the labs for each learner, and a view of the class for you."""


@hub_command.command("up")
@click.option(
    "--labs",
    default="",
    metavar="LAB,LAB",
    help="Make ready what these labs need; learners begin with the first (default: all labs).",
)
@click.option("--trust-each-other", "trusting", is_flag=True, help="Without Docker: processes of your own user here.")
@opt.number_option("--port", PORT, "Where JupyterHub listens.", click.IntRange(1, 65535), metavar="PORT")
@click.option(
    "--url", default="", metavar="URL", help="How learners reach it, for links (default: this machine's loopback)."
)
@opt.number_option("--cpus", 2, "Processors that a learner's container may use.", click.FloatRange(0.1))
@click.option("--memory", default="4G", show_default=True, help="Memory of a learner's container, as Docker writes it.")
@opt.verbose
def hub_up_command(labs: str, trusting: bool, port: int, url: str, cpus: float, memory: str, verbose: bool) -> None:
    """Start JupyterHub, and show the learners' password and yours.

    A learner logs in with a name of their choice. With --trust-each-other it runs until Ctrl-C, and every learner could
    read and change everything that you can.
    """
    session = opt.open_session(verbose)
    chosen = opt.labs_named(session, labs)
    classroom = Classroom(session)
    room = classroom.room
    if not trusting:
        classroom.check()
    room.prepare()
    passwords = [("any other", room.password), (TEACHER, room.teacher_password)]
    address = f"http://127.0.0.1:{port}"
    values = {"HUB_URL": url or f"{address}/", "HUB_LAB": chosen[0].number if labs else ""}
    if not trusting:
        with stack_lock(session.workspace, "hub", "hub up"):
            classroom.start(chosen, port, {**values, "HUB_CPUS": f"{cpus:g}", "HUB_MEMORY": memory})
    click.echo(format_table(passwords, ("name", "password")))
    say(f"{address}  the class: {address}/services/class/ as {TEACHER}")
    if trusting:
        code = classroom.run_here(port, values)
        if code not in ENDED:
            raise LabError("JupyterHub ended", f"exit status {code}", "its own lines are above", code="hub-ended")


@hub_command.command("down")
@opt.verbose
def hub_down_command(verbose: bool) -> None:
    """Stop JupyterHub and every learner's container. Passwords and work stay for the next `hub up`."""
    ended = Classroom(opt.open_session(verbose, whatever_is_broken=True)).end()
    click.echo("the class is down; its work is kept in .labs/hub" if ended else "no class is up")


@hub_command.command("status")
def hub_status_command() -> None:
    """Show where each learner is, and whether JupyterHub answers."""
    session = opt.open_session(whatever_is_broken=True)
    classroom = Classroom(session)
    exercises = find_exercises(session.workspace, session.catalog, lambda problem: None)
    learners = standings(classroom.room, exercises, time.time())
    rows = [(learner.name, learner.current or "-", learner.passed) for learner in learners]
    click.echo(format_table(rows, ("learner", "is at", "passed"), right=(2,)))
    click.echo(
        f"\nJupyterHub answers at {classroom.address}" if classroom.answers() else "\nJupyterHub does not answer"
    )
