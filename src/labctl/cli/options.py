"""The options that many commands share, and what they become.

What they become is imported only when a command is called: `labctl list` and every `--help` do without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.cli.console import Console

if TYPE_CHECKING:
    from labctl.runtimes.record import Choices
    from labctl.stack.session import Session

RUNTIMES = ("auto", "compose", "local")
BALANCES = ("l4", "l7", "hash", "client")
Command = Callable[..., Any]

verbose = click.option("-v", "--verbose", is_flag=True, help="Show the exact commands that are run.")
as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON.")
output_option = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Also write the result, as JSON, to FILE.",
)


def write_result(document: str, output: Path | None, json_output: bool) -> None:
    """Do what ``--output`` and ``--json`` of `run` and `bench` ask for."""
    from labkit.disk import atomic_write

    if output:
        atomic_write(output.absolute(), document)
    if json_output:
        click.echo(document)


stack_argument = click.argument("stack")
replica_option = click.option(
    "--replica",
    type=click.IntRange(1),
    default=None,
    metavar="K",
    help="Only this replica (labctl status numbers them).",
)


def choices(command: Command) -> Command:
    """``--profile --set --release --templates --gpus``; the command gets one ``choices``."""

    @click.option(
        "--profile",
        type=click.Choice(["cpu", "gpu"]),
        default="cpu",
        show_default=True,
        help="cpu: this machine's processor. gpu: NVIDIA's images and TensorRT-LLM engines.",
    )
    @click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a setting; may be repeated (labctl list STACK shows them).",
    )
    @click.option(
        "--release", default="", metavar="VERSION", help="TensorRT-LLM release of the templates (gpu profile)."
    )
    @click.option(
        "--templates",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=None,
        help="Take the model templates from this folder.",
    )
    @click.option(
        "--gpus",
        default="",
        envvar="CUDA_VISIBLE_DEVICES",
        metavar="ID[,ID]",
        help="Use these GPUs, or one MIG slice (gpu profile): their numbers or UUIDs, as nvidia-smi -L "
        "lists them. The default is CUDA_VISIBLE_DEVICES, else the first ones.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        profile: str,
        assignments: tuple[str, ...],
        release: str,
        templates: Path | None,
        gpus: str,
        **kwargs: Any,
    ) -> Any:
        from labctl.manifest.settings import parse_assignments
        from labctl.runtimes.record import Choices

        devices = tuple(filter(None, (word.strip() for word in gpus.split(","))))
        wanted = Choices(profile, parse_assignments(assignments), release, templates and templates.absolute(), devices)
        return command(*args, choices=wanted, **kwargs)

    return wrapped


def up_options(command: Command) -> Command:
    """``choices`` and ``--runtime --ports --timeout --expose``; the command gets one ``options``."""

    @choices
    @click.option(
        "--runtime",
        type=click.Choice(RUNTIMES),
        default="auto",
        show_default=True,
        help="Run the server in a container, or as a process of this machine.",
    )
    @click.option(
        "--ports",
        default="8000,8001,8002",
        show_default=True,
        metavar="H,G,M|auto",
        help="The HTTP, gRPC and metrics ports.",
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        metavar="S",
        help="Seconds to wait until every model answers (180; 900 on the gpu profile).",
    )
    @click.option("--expose", is_flag=True, help="Listen on every address of this machine, not only on loopback.")
    @click.option(
        "--supervise",
        type=click.IntRange(0, 100),
        default=0,
        show_default=True,
        metavar="N",
        help="Restart a server that died, at most N times.",
    )
    @click.option(
        "--allow-client-shm",
        "client_shm",
        is_flag=True,
        help="Let clients register shared memory, which every client can then write to.",
    )
    @click.option(
        "--replicas",
        type=click.IntRange(1, 32),
        default=None,
        metavar="N",
        help="Start N servers behind a load balancer.",
    )
    @click.option(
        "--balance",
        type=click.Choice(BALANCES),
        default=None,
        help="How requests reach the replicas: by connection (l4), one by one (l7; the default), by header "
        "x-sequence-id (hash; the default with sequences), or as the client chooses.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, choices: Choices, balance: str | None, **kwargs: Any) -> Any:
        from labctl.runtimes.record import UpOptions

        own = {item.name: kwargs.pop(item.name) for item in fields(UpOptions) if item.name in kwargs}
        return command(*args, options=UpOptions(choices, balance=balance or "", **own), **kwargs)

    return wrapped


class _Port(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if value == "auto" else click.IntRange(0, 65535).convert(value, param, ctx)


def page_port(usual: int) -> Callable[[Command], Command]:
    """``--port``, or ``--ports`` as of ``up``: where a page listens. None: nobody has asked for a port."""
    return click.option(
        "--port",
        "--ports",
        "port",
        type=_Port(),
        metavar="PORT|auto",
        help=f"The page's port; auto takes a free one.  [default: {usual}, or a free one if that is taken]",
    )


def open_session(show_commands: bool = False, whatever_is_broken: bool = False, dry: bool = False) -> Session:
    from labctl.stack.session import Session

    return Session.open(Console(show_commands), whatever_is_broken, dry)
