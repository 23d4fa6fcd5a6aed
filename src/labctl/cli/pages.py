"""labctl chat and labctl watch: the pages of a stack."""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click

from labctl.cli import completion
from labctl.cli import options as opt
from labctl.pages import gate
from labctl.pages.address import CHAT, PORTS, WATCH, page_address, publish_address
from labctl.stack import faults
from labctl.stack.stack import RunningStack
from labctl.stack.status import trouble
from labkit.errors import LabError


@click.command("chat")
@opt.stack_argument
@opt.page_port(PORTS[CHAT])
@click.option("--endpoint", type=opt.Endpoint(), help="Talk to this server (gRPC), however it was started.")
def chat_command(stack: str, port: int | None, endpoint: str | None) -> None:
    """Open a chat page on loopback for the text models of STACK, which must be up. Ctrl-C ends it."""
    session, lab, name = opt.open_stack(stack)
    model = opt.text_model(session, lab, name, "chat {}", "text model to chat with")
    tokenizer_dir, halted = None, None
    models = list(lab.stacks[name].models)
    ours = not endpoint
    if not endpoint:
        record = RunningStack.require_up(session, name).record
        endpoint, tokenizer_dir = record.endpoints.grpc, record.tokenizer_dir
        models = list(record.models)
        halted = partial(faults.standing_still, session, record)
    try:
        from labctl.pages import chat
    except ImportError as error:
        raise _libraries_missing("chat page", error) from None
    note = f"`labctl watch {name}` shows the scheduler at work."
    page = chat.chat_page(endpoint, models, model, tokenizer_dir, lab.title, note, halted)
    with (
        chat.serve_chat(page, port) as address,
        publish_address(session.workspace, name, CHAT, address) if ours else nullcontext(),
    ):
        click.echo(f"{name}: {address}  (Ctrl-C ends it)")
        if ours and (watching := page_address(session.workspace, name, WATCH)):
            click.echo(f"its scheduler: {watching}")
        chat.wait()


@click.command("watch")
@click.argument("stack", metavar="STACK|RESULT", shell_complete=completion.stacks_or_files)
@opt.page_port(PORTS[WATCH])
@opt.replica_option
@click.option(
    "--forwarded-host",
    "forwarded",
    metavar="NAME",
    help="Also answer under this name, at which the page's port is forwarded (Codespaces).",
)
def watch_command(stack: str, port: int | None, replica: int | None, forwarded: str | None) -> None:
    """Open a page that shows the scheduler of STACK, which must be up, while it works; or a run that is over.

    RESULT is a folder below results/, or the folder that a vLLM of your own records into: while that is written, the
    page follows it. Ctrl-C ends the page.
    """
    from labsched.vllm import reader

    if forwarded and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?", forwarded):
        raise click.UsageError(f"--forwarded-host takes a name as an address has it, and no {forwarded!r}")
    recorded = Path(stack).is_dir() and reader.is_recording(Path(stack))
    try:
        from labctl.pages.live import server
    except ImportError as error:
        raise _libraries_missing("page", error) from None
    workspace = None
    if recorded or (Path(stack).is_dir() and "/" in stack):
        name, page = stack, server.page_of_run(Path(stack))
    else:
        session, lab, name = opt.open_stack(stack)
        workspace, record = session.workspace, RunningStack.require_up(session, name).record.one(replica)
        page = server.page_of_stack(workspace, lab, record, lambda ask: trouble(session, name, ask))
    in_class = opt.at_jupyter("proxy")  # jupyter-server-proxy, which asks who it is first
    page.forwarded = gate.ANY if in_class else forwarded and forwarded.lower()
    with (
        page.serving(port) as address,
        publish_address(workspace, name, WATCH, address) if workspace else nullcontext(),
    ):
        where = urlsplit(address)
        shown = f"{in_class}/{where.port}{where.path}" if in_class else address
        click.echo(f"{name}: {shown}  (Ctrl-C ends it)")
        if forwarded:
            click.echo(f"forwarded: https://{page.forwarded}/{page.token}/")
        threading.Event().wait()


def _libraries_missing(page: str, error: ImportError) -> LabError:
    remedy = "make setup (or: pip install gradio)"
    return LabError(f"the {page} cannot be made here", str(error), remedy, code="page-libraries-missing")
