"""labctl reload, undo, restart: the loop of a person who edits a lab's models."""

from __future__ import annotations

import click

from labctl import repository
from labctl.cli import options as opt
from labctl.errors import LabError
from labctl.orchestrator import edits, shipped
from labctl.orchestrator.running import plan_of
from labctl.orchestrator.session import Session
from labctl.runtimes.base import Record, Runtime

timeout = click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=edits.LOAD_S,
                       show_default=True, metavar="S", help="Seconds to wait until a model is loaded.")  # fmt: skip


def _running(session: Session, stack: str) -> tuple[Runtime, Record]:
    if running := session.find(stack):
        return running
    raise LabError(f"{stack} is not up", "", f"labctl up {stack}")


@click.command("reload")
@opt.stack_argument
@click.argument("model", required=False)
@timeout
@opt.verbose
def reload_command(stack: str, model: str | None, timeout: float, verbose: bool) -> None:
    """Load the edited models of STACK (or MODEL) again, in place; the server and the other models stay."""
    session = opt.open_session(verbose)
    lab, name = session.catalog.stack(stack)
    loaded = edits.reload(session, lab, name, [model] if model else (), timeout)
    click.echo(f"loaded: {', '.join(loaded)}" if loaded else "nothing was edited since it was loaded")


@click.command("undo")
@opt.stack_argument
@click.argument("model", required=False)
@opt.verbose
def undo_command(stack: str, model: str | None, verbose: bool) -> None:
    """Put the shipped files of STACK (or of its MODEL) back; yours are kept beside them."""
    session = opt.open_session(verbose)
    lab, name = session.catalog.stack(stack)
    runtime, record = _running(session, name)
    if model and model not in record.models:
        raise LabError(f"{name} has no model '{model}'", f"it has: {', '.join(record.models)}")
    origins = repository.origins(plan_of(session, lab, runtime, record).request)
    files = [path for place, path in origins.items() if model in (None, place.split("/", 1)[0])]
    done = shipped.undo(session.workspace, files)
    for path, kept in done.items():
        where = f" (yours: {kept.name})" if kept else ""
        click.echo(f"{path.relative_to(session.workspace.root)} is as shipped again{where}")
    click.echo(f"then: labctl reload {name}" if done else "nothing differs from what was shipped")


@click.command("restart")
@opt.stack_argument
@opt.verbose
def restart_command(stack: str, verbose: bool) -> None:
    """Take STACK down and up again with the settings, runtime and ports that it has."""
    from labctl.orchestrator.restart import restart

    session = opt.open_session(verbose)
    lab, name = session.catalog.stack(stack)
    _running(session, name)
    record = restart(session, lab, name)
    click.echo(f"{name} is ready again ({record.endpoints.http})")
