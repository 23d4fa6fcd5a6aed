"""The options that many commands share, and what they become.

What they become is imported only when a command is called: `labctl list` and every `--help` do without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.cli.console import Console

if TYPE_CHECKING:
    from labctl.orchestrator.plan import Choices
    from labctl.orchestrator.session import Session

RUNTIMES = ("auto", "compose", "local")
BALANCES = ("l4", "l7", "hash", "client")
Command = Callable[..., Any]
PATIENCE_S = {"cpu": 180.0, "gpu": 900.0}

verbose = click.option("-v", "--verbose", is_flag=True, help="Show the exact commands that are run.")
as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON.")
stack_argument = click.argument("stack")
replica_option = click.option("--replica", type=click.IntRange(1), default=None, metavar="K",
                              help="This replica alone (labctl status numbers them).")  # fmt: skip


def choices(command: Command) -> Command:
    """``--profile --set --release --templates``; the command gets one ``choices``."""

    @click.option("--profile", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True,
                  help="Which images, models and engines to use.")  # fmt: skip
    @click.option(
        "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change a setting (labctl list LAB)."
    )
    @click.option("--release", default="", help="TensorRT-LLM release of the templates (gpu profile).")
    @click.option("--templates", type=click.Path(exists=True, file_okay=False, path_type=Path), default=None,
                  help="Take the model templates from this folder.")  # fmt: skip
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        profile: str,
        assignments: tuple[str, ...],
        release: str,
        templates: Path | None,
        **kwargs: Any,
    ) -> Any:
        from labctl.manifest.settings import parse_assignments
        from labctl.orchestrator.plan import Choices

        wanted = Choices(profile, parse_assignments(assignments), release, templates and templates.absolute())
        return command(*args, choices=wanted, **kwargs)

    return wrapped


def up_options(command: Command) -> Command:
    """``choices`` and ``--runtime --ports --timeout --expose``; the command gets one ``options``."""

    @choices
    @click.option("--runtime", type=click.Choice(RUNTIMES), default="auto", show_default=True,
                  help="Run the server in a container, or as a process of this machine.")  # fmt: skip
    @click.option("--ports", default="8000,8001,8002", show_default=True, metavar="H,G,M|auto",
                  help="The HTTP, gRPC and metrics ports.")  # fmt: skip
    @click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=None, metavar="S",
                  help="Seconds to wait until every model answers (180; 900 on the gpu profile).")  # fmt: skip
    @click.option("--expose", is_flag=True, help="Listen on every address of this machine, not only on loopback.")
    @click.option("--supervise", type=click.IntRange(0, 100), default=0, show_default=True, metavar="N",
                  help="Restart a server that died, at most N times.")  # fmt: skip
    @click.option("--allow-client-shm", "client_shm", is_flag=True,
                  help="Let clients register shared memory: all who reach the server can write to it.")  # fmt: skip
    @click.option("--replicas", type=click.IntRange(1, 32), default=None, metavar="N",
                  help="That many servers behind one balancer.")  # fmt: skip
    @click.option("--balance", type=click.Choice(BALANCES), default=None,
                  help="How requests are spread: by connection (l4), each by itself (l7; the default), by the header "
                       "x-sequence-id (hash; the default with sequences), by the clients themselves.")  # fmt: skip
    @functools.wraps(command)
    def wrapped(
        *args: Any, choices: Choices, runtime: str, ports: str, timeout: float | None, expose: bool,
        client_shm: bool, supervise: int, replicas: int | None, balance: str | None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        from labctl.orchestrator.up import UpOptions

        wait = PATIENCE_S[choices.profile] if timeout is None else timeout
        options = UpOptions(choices, runtime, ports, wait, expose, client_shm, supervise, replicas, balance or "")
        return command(*args, options=options, **kwargs)

    return wrapped


def open_session(show_commands: bool = False) -> Session:
    from labctl.orchestrator.session import Session

    return Session.open(Console(show_commands))
