"""labctl openai."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from labctl.cli import options as opt
from labctl.cli.console import Console
from labctl.listener import Listener
from labkit.errors import LabError
from labkit.tls import CertificatePair


def tls_options(command: opt.Command) -> opt.Command:
    """``--tls-cert --tls-key``, both or none; the command gets one ``tls``, checked, or None."""

    @click.option("--tls-cert", "cert", type=opt.FILE, metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
    @click.option("--tls-key", "key", type=opt.FILE, metavar="FILE", help="The private key of --tls-cert (PEM).")
    @functools.wraps(command)
    def wrapped(*args: Any, cert: Path | None, key: Path | None, **kwargs: Any) -> Any:
        if bool(cert) != bool(key):
            raise click.UsageError("--tls-cert and --tls-key belong together: give both")
        tls = CertificatePair(cert.absolute(), key.absolute()) if cert and key else None
        if tls:
            tls.context()  # before anything is started
        return command(*args, tls=tls, **kwargs)

    return wrapped


@dataclass(frozen=True)
class Front:
    """The OpenAI API that ``labctl up`` shall also serve, with ``tls`` over HTTPS."""

    tls: CertificatePair | None


def front_options(command: opt.Command) -> opt.Command:
    """``--openai`` and :func:`tls_options`; the command gets one ``front``, or None."""

    @click.option(
        "--openai", "fronted", is_flag=True, help="Also serve the OpenAI API, on port 9000 (docs/guide/openai.md)."
    )
    @tls_options
    @functools.wraps(command)
    def wrapped(*args: Any, fronted: bool, tls: CertificatePair | None, **kwargs: Any) -> Any:
        if tls and not fronted:
            raise click.UsageError("--tls-cert is for the OpenAI API: add --openai")
        return command(*args, front=Front(tls) if fronted else None, **kwargs)

    return wrapped


@click.command("openai")
@opt.maybe_stack
@opt.endpoint_option("gRPC")
@opt.model_option
@opt.page_port(9000)
@opt.expose_option
@tls_options
@opt.as_json
@opt.verbose
def openai_command(
    stack: str,
    endpoint: str,
    model: str,
    port: int | None,
    expose: bool,
    tls: CertificatePair | None,
    json_output: bool,
    verbose: bool,
) -> None:
    """Serve the OpenAI API in front of STACK, which must be up, or of a MODEL of any server. Ctrl-C ends it.

    With --expose its clients need the stack's token as their API key (labctl status STACK --token); with --tls-cert and
    --tls-key they speak HTTPS.
    """
    from labctl.options import ANY_ADDRESS, LOOPBACK
    from labctl.pages.address import OPENAI, listening_socket
    from labctl.runtimes import door, processes
    from labctl.runtimes.record import Endpoints, Record
    from labctl.stack.door import describe_door

    opt.require_named(stack, endpoint)
    if endpoint and expose:
        raise click.UsageError("--expose needs a STACK that is up: its clients need its token")
    if model and not endpoint:
        raise click.UsageError("a STACK is served with all its models; -m is for --endpoint")
    if endpoint:
        name, token = endpoint, None
        listener: Listener = Console(verbose)
        model = opt.model_there(stack, model, "openai")
        elsewhere = Endpoints(http="", grpc=endpoint, metrics="")
        record = Record(stack="", lab="", runtime="", profile="", settings={}, models=[model], endpoints=elsewhere)
    else:
        session, _, name = opt.open_stack(stack, verbose)
        record = session.require_up(name).record
        folder, listener = session.workspace.folder(name), session.listener
        if expose and not folder.read_token():
            folder.make_token()
        token = folder.token if expose else None
    bind = ANY_ADDRESS if expose else LOOPBACK
    with listening_socket(bind, port, OPENAI) as probe:
        number = probe.getsockname()[1]
    address = door.url(number, tls)
    if json_output:
        ready = json.dumps({"stack": name, "openai": address})
    else:
        ready = f"{name}: {describe_door(name, address, bind if expose else '')}  (Ctrl-C ends it)"
    code = processes.run_foreground(door.command(record, number, ready, token, tls), listener)
    if code:
        raise LabError(
            f"the OpenAI API of {name} ended",
            processes.describe_exit(code),
            "its own message is above",
            code="openai-ended",
        )
