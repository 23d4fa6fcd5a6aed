"""labctl watch."""

from __future__ import annotations

import threading

import click

from labctl.cli import options as opt
from labctl.errors import LabError


@click.command("watch")
@opt.stack_argument
@click.option("--port", type=click.IntRange(0, 65535), default=7861, show_default=True,
              help="The page's port; 0 takes a free one.")  # fmt: skip
@click.option("--expose", is_flag=True, help="Listen on every address of this machine, not only on loopback.")
def watch_command(stack: str, port: int, expose: bool) -> None:
    """Open a page that shows the scheduler of STACK, which must be up, while it works. Ctrl-C ends it."""
    try:
        from labctl.watch import live
    except ImportError as error:
        raise LabError("the page cannot be made here", str(error), "make setup (or: pip install gradio)") from None
    session = opt.open_session()
    lab, name = session.catalog.stack(stack)
    found = session.find(name)
    if not found:
        raise LabError(f"{name} is not up", "", f"labctl up {name}")
    with live.page(session.workspace, lab, found[1], expose).serving(port) as address:
        if expose:
            click.echo(
                "--expose: whoever reaches this machine and has the whole address can watch, send and cancel", err=True
            )
        click.echo(f"{name}: {address}  (Ctrl-C ends it)")
        threading.Event().wait()
