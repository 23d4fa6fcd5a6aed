"""labctl render."""

from __future__ import annotations

from pathlib import Path

import click

from labctl import repository
from labctl.cli import options as opt
from labctl.cli.dry import dry_option, show
from labctl.orchestrator.dry_run import dry_render
from labctl.orchestrator.plan import Choices, make_plan


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
    plan = make_plan(session.workspace, lab, name, choices, seen.server_path, output and output.absolute())
    if dry:
        show(dry_render(plan, seen))
        return
    for notice in plan.notices:
        session.listener.note(notice)
    rendered = repository.render(plan.request)
    if runtime == "compose" and output is None:  # what compose.yaml mounts is there, and the server, nobody, can write
        session.workspace.cache.mkdir(parents=True, exist_ok=True)
        session.workspace.run_dir(name).mkdir(exist_ok=True)
        session.workspace.run_dir(name).chmod(0o1777)
    click.echo(f"{rendered.path}: {', '.join(rendered.models)}")
