"""labctl render."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.cli.dry import dry_option, show
from labctl.orchestrator.build import rendering
from labctl.orchestrator.plan import Choices


@click.command("render")
@opt.stack_argument
@opt.choices
@click.option("--runtime", type=click.Choice(["compose", "local"]), default="compose", show_default=True,
              help="Write the paths that a server on this runtime will see.")  # fmt: skip
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write (default: the stack's own).",
)
@dry_option
def render_command(stack: str, choices: Choices, runtime: str, output: Path | None, dry: bool) -> None:
    """Render STACK's model repository: no weights are fetched, no engine is built, nothing is started.

    With `docker compose up --wait` after it (LABS_STACK=STACK), the stack is served by hand.
    """
    session = opt.open_session()
    lab, name = session.catalog.stack(stack)
    seen = session.runtime(runtime)
    todo = rendering(session, lab, name, choices, seen, output and output.absolute())
    if dry:
        show(todo)
        return
    for notice in todo.notices:
        session.listener.note(notice)
    for action in todo.actions:
        click.echo(action.do(session.listener))
