"""labctl chat."""

from __future__ import annotations

import contextlib

import click

from labctl.cli import options as opt
from labctl.errors import LabError
from labctl.watch.address import CHAT, WATCH, known, of


@click.command("chat")
@opt.stack_argument
@click.option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True,
              help="The page's port; 0 takes a free one.")  # fmt: skip
@click.option("--endpoint", default="", metavar="HOST:PORT", help="Talk to this server (gRPC), however it was started.")
@click.option("--expose", is_flag=True, help="Listen on every address of this machine, not only on loopback.")
def chat_command(stack: str, port: int, endpoint: str, expose: bool) -> None:
    """Open a chat page for the text models of STACK, which must be up. Ctrl-C ends it."""
    session = opt.open_session()
    lab, name = session.catalog.stack(stack)
    entry = lab.stacks[name].bench
    if entry is None:
        texts = [n for other in session.catalog.labs for n, s in other.stacks.items() if s.bench]
        raise LabError(f"{name} has no text model to chat with", "", f"labctl chat {texts[0]} (or {', '.join(texts)})")
    ours, tokenizer_dir = not endpoint, ""
    models = list(lab.stacks[name].models)
    if ours:
        live = session.find(name)
        if not live:
            raise LabError(f"{name} is not up", "", f"labctl up {name}")
        endpoint, tokenizer_dir, models = live[1].endpoints.grpc, live[1].tokenizer_dir, list(live[1].models)
    try:
        from labctl.cli import chat_page
    except ImportError as error:
        raise LabError("the chat page cannot be made here", str(error), "make setup (or: pip install gradio)") from None
    scheduler = chat_page.Scheduler(f"labctl watch {name}", lambda: of(session.workspace, name, WATCH) if ours else "")
    page = chat_page.Page(endpoint, models, entry.model, tokenizer_dir, lab.title, scheduler)
    with (
        chat_page.serve(page, "0.0.0.0" if expose else "127.0.0.1", port) as address,
        known(session.workspace, name, CHAT, address) if ours else contextlib.nullcontext(),
    ):
        click.echo(f"{name}: {address}  (Ctrl-C ends it)")
        if watching := scheduler.address():
            click.echo(f"its scheduler: {watching}")
        chat_page.wait()
