"""labctl hub: a class on JupyterHub."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.learn.classroom import Classroom
from labctl.learn.exercise import find_exercises
from labctl.learn.room import TEACHER, require_names
from labctl.learn.standing import standings
from labkit.errors import LabError
from labkit.tables import format_table

PORT = 8888
ENDED = (0, 130, -2)  # exit statuses of a JupyterHub that ended by itself, or by Ctrl-C


@dataclass(frozen=True)
class _SeatLimits:
    """What a learner's container may use, and the seconds without use after which it is stopped."""

    cpus: float
    memory: str
    pids: int
    idle: float

    @property
    def variables(self) -> dict[str, str]:
        """The limits as compose.hub.yaml and JupyterHub's configuration read them."""
        return {
            "HUB_CPUS": f"{self.cpus:g}",
            "HUB_MEMORY": self.memory,
            "HUB_PIDS": str(self.pids),
            "HUB_IDLE_S": f"{self.idle:g}",
        }


@click.group("hub")
def hub_command() -> None:
    """Run a class on JupyterHub: for each learner JupyterLab with the labs, and for you who is where."""


@hub_command.command("up")
@opt.number_option("--learners", 0, "A room for N: learner-01, learner-02 ...", click.IntRange(0, 200))
@click.option("--names", type=opt.A_FILE, metavar="FILE", help="The learners' names instead, one a line.")
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
@opt.gathered(
    "seats",
    _SeatLimits,
    opt.number_option("--cpus", 2, "Processors that a learner's container may use.", click.FloatRange(0.1)),
    click.option("--memory", default="3G", show_default=True, help="Memory that it may use, as Docker says it."),
    opt.number_option("--pids", 1024, "Processes and threads that it may have.", click.IntRange(64)),
    opt.number_option("--idle", 3600, "Stop a server that nobody has used for so long.", opt.POSITIVE, metavar="S"),
)
@opt.verbose
def hub_up_command(
    learners: int, names: Path | None, labs: str, trusting: bool, port: int, url: str, seats: _SeatLimits, verbose: bool
) -> None:
    """Start JupyterHub, and take in who is not in the room yet: their passwords are shown once.

    Again with more learners it is a larger room: who was in it keeps password and work. With --trust-each-other it runs
    until Ctrl-C, and every learner could read and change everything that you can.
    """
    session = opt.open_session(verbose)
    chosen = opt.labs_named(session, labs)
    classroom = Classroom(session)
    text = names.read_text(encoding="utf-8", errors="replace") if names else ""
    invited = [name.strip() for name in text.split("\n") if name.strip()]
    invited += [f"learner-{number:02d}" for number in range(1, learners + 1)]
    require_names(invited)
    classroom.room.prepare()
    address = f"http://127.0.0.1:{port}"
    settings = {"HUB_URL": url or f"{address}/", "HUB_LAB": chosen[0].number if labs else ""}
    if not trusting:
        with session.lock("hub", "hub up"):
            classroom.start(chosen, port, {**settings, **seats.variables})
    _show_passwords(classroom.room.admit(invited))
    say(f"{address}  the class: /services/class/ as {TEACHER}")
    if trusting:
        code = classroom.run_here(port, {**settings, "HUB_IDLE_S": seats.variables["HUB_IDLE_S"]})
        if code not in ENDED:
            raise LabError("JupyterHub ended", f"exit status {code}", "its own lines are above", code="hub-ended")


def _show_passwords(passwords: dict[str, str]) -> None:
    """Print the only copy of new passwords: what the room keeps is their hashes."""
    if passwords:
        click.echo(format_table(sorted(passwords.items()), ("name", "password")))


@hub_command.command("down")
@opt.verbose
def hub_down_command(verbose: bool) -> None:
    """Stop JupyterHub and every learner's container. Passwords and work stay for the next `hub up`."""
    ended = Classroom(opt.open_session(verbose, whatever_is_broken=True)).end()
    click.echo("the class is down; its work is kept in .labs/hub" if ended else "no class is up")


@hub_command.command("status")
def hub_status_command() -> None:
    """Show who is in the room, whose server is up, and where each learner is."""
    session = opt.open_session(whatever_is_broken=True)
    classroom = Classroom(session)
    users = classroom.users()
    exercises = find_exercises(session.workspace, session.catalog, lambda problem: None)
    rows = []
    for learner in standings(classroom.room, exercises, time.time()):
        user = (users or {}).get(learner.name, {})
        server = "up" if user.get("server") else "-"
        seen = str(user.get("last_activity") or "-")[:16]
        rows.append((learner.name, server, learner.current or "-", str(learner.passed), seen))
    click.echo(format_table(rows, ("learner", "server", "is at", "passed", "last seen (UTC)"), right=(3,)))
    click.echo(f"\nJupyterHub answers at {classroom.address}" if users is not None else "\nJupyterHub does not answer")


@hub_command.command("add")
@click.argument("names", nargs=-1, required=True)
def add_command(names: tuple[str, ...]) -> None:
    """Take NAMES into the room, while it is up or not; their passwords are shown once."""
    passwords = _classroom().room.admit(names)
    _show_passwords(passwords)
    if known := [name for name in names if name not in passwords]:
        click.echo(f"in the room already: {', '.join(known)}  (labctl hub password NAME makes a new one)")


@hub_command.command("password")
@click.argument("name")
def password_command(name: str) -> None:
    """Give NAME (a learner, or teacher) a new password, and show it once."""
    _show_passwords({name: _classroom().room.renew(name)})


@hub_command.command("reset")
@click.argument("name")
def hub_reset_command(name: str) -> None:
    """Stop NAME's server and give NAME an empty folder; the old work is kept beside it."""
    classroom = _classroom()
    classroom.room.require(name)
    if not classroom.stop_server(name):
        raise LabError(f"the server of {name} does not stop", "", f"labctl hub reset {name}, again", code="seat-busy")
    kept = classroom.room.clear(name)
    where = f"; the old work: {kept.relative_to(classroom.root)}" if kept else ""
    click.echo(f"{name} begins anew{where}")


def _classroom() -> Classroom:
    return Classroom(opt.open_session(whatever_is_broken=True))
