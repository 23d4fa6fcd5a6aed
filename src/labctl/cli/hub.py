"""labctl hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labkit.errors import LabError

if TYPE_CHECKING:
    from labctl.learn.exercise import Exercise
    from labctl.stack.session import Session

PORT = 8080


@click.group("hub")
def hub_command() -> None:
    """Serve a room of learners on this machine: exercises in a browser, a server for each learner."""


@hub_command.command("up")
@opt.number_option("--learners", 10, "How many learners.", click.IntRange(1, 200))
@opt.number_option("--port", PORT, "The pages' port.", click.IntRange(0, 65535))
@click.option("--labs", "names", default="", metavar="LAB,LAB", help="Only exercises of these labs.")
@opt.number_option("--checks", None, "Checks at the same time (half of the processors).", click.IntRange(1))
@opt.number_option("--memory", 3072, "Memory of a learner's processes, in MiB.", click.IntRange(512), "MIB")
@opt.number_option("--idle", 10.0, "Minutes after which an unused server goes down.", opt.SECONDS, "MINUTES")
@click.option("--new-codes", is_flag=True, help="Make new codes, in the place of those of the last time.")
@click.option("--trust-each-other", "trusting", is_flag=True, help="Run all learners' code as one user, without root.")
@opt.expose_option
@click.option("--forwarded-host", "forwarded", default="", metavar="NAME", help="Also answer under this name.")
@click.option("--tls-cert", type=opt.A_FILE, help="The certificate, with which the pages are served over TLS.")
@click.option("--tls-key", type=opt.A_FILE, help="The key of the certificate.")
def up_(
    learners: int,
    port: int,
    names: str,
    checks: int | None,
    memory: int,
    idle: float,
    new_codes: bool,
    trusting: bool,
    expose: bool,
    forwarded: str,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Open the room, and print each learner's code once. Ctrl-C ends it.

    Each learner's code runs as a user of its own, which needs root.
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if expose and not tls_cert:
        raise LabError(
            "--expose needs TLS",
            "codes and cookies would cross the network as plain text",
            "--tls-cert FILE --tls-key FILE; or leave --expose out, and put a proxy with TLS before the port",
        )
    try:
        from labctl.hub import serve
    except ImportError as error:
        raise LabError("the pages cannot be served here", str(error), "make setup") from None
    from labctl.runtimes import seats

    if not trusting:
        seats.require_apart()
    session = opt.open_session()
    exercises = _exercises(session, names)
    settings = serve.Settings(learners, checks or max(1, (os.cpu_count() or 2) // 2), memory, 60.0 * idle, not trusting)
    hub, codes = serve.open_hub(session, exercises, settings, expose, bool(tls_cert), new_codes)
    hub.forwarded = forwarded.lower()
    try:
        with serve.listening(hub, port, tls_cert, tls_key) as address:
            _print(codes)
            say(f"{len(exercises)} exercises, {learners} learners: {address}  (Ctrl-C ends it)")
            if trusting:
                say("--trust-each-other: every learner's code can read and change what the others have here")
            say(f"progress: labctl workshop report {hub.room.folder.relative_to(session.workspace.root)}/report/*.json")
            serve.wait()
    finally:
        hub.close()


@hub_command.command("reset")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset_(yes: bool) -> None:
    """Forget the room: codes, learners' files and progress. No hub may be up."""
    from labctl.hub.serve import folder_of, sole
    from labctl.workspace import Workspace

    folder = folder_of(Workspace.find())
    if not folder.is_dir():
        raise LabError("there is no room here", "", "labctl hub up")
    with sole(folder):
        if not yes:
            click.confirm(f"remove {folder} with every learner's files?", abort=True)
        shutil.rmtree(folder)
    say("the room is gone")


def _exercises(session: Session, names: str) -> list[Exercise]:
    from labctl.learn.exercise import find_all

    found = find_all(session.workspace, session.catalog, lambda problem: session.listener.note(f"left out: {problem}"))
    wanted = {session.catalog.lab(name.strip()).folder for name in names.split(",")} if names else set()
    return [exercise for exercise in found if not names or exercise.lab.folder in wanted]


def _print(codes: dict[int, str]) -> None:
    for number, code in codes.items():
        who = f"learner {number}" if number else "instructor"
        say(f"{who:<11}  {code[:5]}-{code[5:]}")
    if not codes:
        say("the codes are those of the last time (--new-codes makes others)")
