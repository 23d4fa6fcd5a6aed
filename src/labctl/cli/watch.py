"""labctl watch."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.pages.address import PORTS, WATCH, known
from labkit.errors import LabError

MAY = "watch, send requests and cancel them"


@click.command("watch")
@click.argument("stack", metavar="STACK|RESULT")
@opt.page_port(PORTS[WATCH])
@click.option("--expose", is_flag=True, help="Listen on every address of this machine, not only on loopback.")
@opt.replica_option
@click.option("--terminal", is_flag=True, help="Show it here, without a page; q ends it.")
def watch_command(stack: str, port: int | None, expose: bool, replica: int | None, terminal: bool) -> None:
    """Open a page that shows the scheduler of STACK, which must be up, while it works; or a run that is over.

    RESULT is a folder below results/. Ctrl-C ends the page.
    """
    if terminal:
        _in_terminal(stack, replica)
        return
    try:
        from labctl.pages.live import serve
    except ImportError as error:
        raise LabError("the page cannot be made here", str(error), "make setup (or: pip install gradio)") from None
    workspace = None
    if Path(stack).is_dir() and "/" in stack:
        name, page = stack, serve.page_of_run(Path(stack), expose)
    else:
        session = opt.open_session()
        lab, name = session.catalog.stack(stack)
        workspace, record = session.workspace, session.require_up(name)[1].one(replica)
        page = serve.page_of_stack(workspace, lab, record, expose)
    with page.serving(port) as address, known(workspace, name, WATCH, address) if workspace else nullcontext():
        if expose:
            click.echo(f"--expose: whoever reaches this machine and has this whole address can {MAY}", err=True)
        click.echo(f"{name}: {address}  (Ctrl-C ends it)")
        threading.Event().wait()


def _in_terminal(stack: str, replica: int | None) -> None:
    from labctl.cli.watch_screen import WatchScreen
    from labctl.clock.clock import pause_limit

    session = opt.open_session()
    _, name = session.catalog.stack(stack)
    record = session.require_up(name)[1].one(replica)
    limit = pause_limit(session.workspace.folder(name).repository)
    folder = record.folder(record.servers[0].number)
    WatchScreen(session.workspace.folder(name).run_dir(folder), record, limit).run()
