"""labctl render."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.cli.console import show_dry_run
from labctl.runtimes.record import Choices
from labctl.stack import targets
from labctl.stack.build import render_repository


@click.command("render")
@opt.stack_argument
@opt.choices
@opt.choice_option("--runtime", ("compose", "local"), "Write the paths that a server on this runtime will see.")
@click.option(
    "--output", type=opt.FOLDER, metavar="FOLDER", help="Write to this folder. The default is the stack's own."
)
@opt.choice_option(
    "--target", ("triton", "swarm", "kubernetes"), "Only the model repository, or the whole stack for many machines."
)
@opt.dry_option
def render_command(stack: str, choices: Choices, runtime: str, output: Path | None, target: str, dry: bool) -> None:
    """Render STACK's model repository: no weights are fetched, no engine is built, nothing is started.

    While STACK is up, name another folder with --output: its server reads the default one.

    With `docker compose up --wait` after it (LABS_STACK=STACK), the stack is served by hand. With --target, what
    `docker stack deploy` or `kubectl apply -k` takes (docs/operate/swarm.md, docs/operate/kubernetes.md).
    """
    session, lab, name = opt.open_stack(stack)
    place = output and output.absolute()
    if target == "triton":
        todo = render_repository(session, lab, name, choices, session.runtime(runtime), place)
    else:
        todo = targets.render_for_target(session, lab, name, choices, target, place)
    if dry:
        show_dry_run(todo)
        return
    for notice in todo.notices:
        session.listener.note(notice)
    for action in todo.actions:
        click.echo(action.do(session.listener))
