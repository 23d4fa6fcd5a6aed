"""labctl openai."""

from __future__ import annotations

import json

import click

from labctl.cli import options as opt
from labctl.cli.console import Console
from labctl.listener import Listener
from labctl.stack.stack import RunningStack
from labkit.errors import LabError


@click.command("openai")
@opt.maybe_stack
@opt.endpoint_option("gRPC")
@opt.model_option
@opt.page_port(9000)
@opt.as_json
@opt.verbose
def openai_command(
    stack: str | None, endpoint: str | None, model: str | None, port: int | None, json_output: bool, verbose: bool
) -> None:
    """Serve the OpenAI API in front of STACK, which must be up, or of a MODEL of any server. Ctrl-C ends it."""
    from labctl.pages.address import OPENAI, listening_socket
    from labctl.runtimes import door, processes
    from labctl.runtimes.record import Endpoints, Record

    opt.require_named(stack, endpoint)
    if model and not endpoint:
        raise click.UsageError("a STACK is served with all its models; -m is for --endpoint")
    if endpoint:
        name = endpoint
        listener: Listener = Console(verbose)
        model = opt.model_there(stack, model, "openai")
        elsewhere = Endpoints(http="", grpc=endpoint, metrics="")
        record = Record(stack="", lab="", runtime="", profile="", settings={}, models=[model], endpoints=elsewhere)
    else:
        assert stack  # require_named
        session, _, name = opt.open_stack(stack, verbose)
        record = RunningStack.require_up(session, name).record
        listener = session.listener
    with listening_socket(port, OPENAI) as probe:
        number = probe.getsockname()[1]
    address = door.url(number)
    if json_output:
        ready = json.dumps({"stack": name, "openai": address})
    else:
        ready = f"{name}: OpenAI API: {address}  (Ctrl-C ends it)"
    code = processes.run_foreground(door.command(record, number, ready), listener)
    if code:
        raise LabError(
            f"the OpenAI API of {name} ended",
            processes.describe_exit(code),
            "its own message is above",
            code="openai-ended",
        )
