"""labctl chat."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import click

from labctl.cli import options as opt
from labctl.pages.address import CHAT, PORTS, WATCH, known, of
from labctl.stack import faults
from labkit.errors import LabError


@click.command("chat")
@opt.stack_argument
@opt.page_port(PORTS[CHAT])
@click.option("--endpoint", default="", metavar="HOST:PORT", help="Talk to this server (gRPC), however it was started.")
@click.option("--expose", is_flag=True, help="Listen on every address of this machine, not only on loopback.")
def chat_command(stack: str, port: int | None, endpoint: str, expose: bool) -> None:
    """Open a chat page for the text models of STACK, which must be up. Ctrl-C ends it."""
    session = opt.open_session()
    lab, name = session.catalog.stack(stack)
    entry = lab.stacks[name].bench
    if entry is None:
        texts = [n for other in session.catalog.labs for n, s in other.stacks.items() if s.bench]
        raise LabError(f"{name} has no text model to chat with", "", f"labctl chat {texts[0]} (or {', '.join(texts)})")
    ours, tokenizer_dir = not endpoint, ""
    still: Callable[[], str] = str
    models = list(lab.stacks[name].models)
    if ours:
        _, record = session.require_up(name)
        endpoint, tokenizer_dir, models = record.endpoints.grpc, record.tokenizer_dir, list(record.models)
        still = partial(faults.standing_still, session, record)
    try:
        from labctl.pages import chat
    except ImportError as error:
        raise LabError("the chat page cannot be made here", str(error), "make setup (or: pip install gradio)") from None
    scheduler = chat.Scheduler(
        f"labctl watch {name}", lambda: of(session.workspace, name, WATCH) if ours else "", still
    )
    page = chat.Page(endpoint, models, entry.model, tokenizer_dir, lab.title, scheduler)
    with (
        chat.serve(page, "0.0.0.0" if expose else "127.0.0.1", port) as address,
        known(session.workspace, name, CHAT, address) if ours else contextlib.nullcontext(),
    ):
        click.echo(f"{name}: {address}  (Ctrl-C ends it)")
        if watching := scheduler.address():
            click.echo(f"its scheduler: {watching}")
        chat.wait()
