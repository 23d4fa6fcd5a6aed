"""labctl openai."""

from __future__ import annotations

import json

import click

from labctl.cli import options as opt
from labkit.errors import LabError


@click.command("openai")
@opt.stack_argument
@opt.page_port(9000)
@opt.as_json
@opt.verbose
def openai_command(stack: str, port: int | None, json_output: bool, verbose: bool) -> None:
    """Serve the OpenAI API in front of STACK, which must be up. Ctrl-C ends it."""
    from labctl.pages.address import OPENAI, listening
    from labctl.runtimes import door, processes

    session, _, name = opt.open_stack(stack, verbose)
    _, record = session.require_up(name)
    with listening("127.0.0.1", port, OPENAI) as probe:
        number = probe.getsockname()[1]
    shown = json.dumps({"stack": name, "openai": door.url(number)})
    said = shown if json_output else f"{name}: {door.url(number)}  (Ctrl-C ends it)"
    code = processes.run_foreground(door.command(record, number, said), session.listener)
    if code:
        raise LabError(f"the OpenAI API of {name} ended", processes.describe_exit(code), "its own message is above")
