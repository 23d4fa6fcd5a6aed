"""The options that many commands share, and what they become.

What they become is imported only when a command is called: `labctl list` and every `--help` do without.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from labctl.cli import completion
from labctl.cli.console import Console
from labctl.options import TRITON_PORTS, Options
from labctl.workspace import RUNTIMES
from labkit.errors import LabError

if TYPE_CHECKING:
    from labctl.lab import Lab
    from labctl.stack.session import Session

JUPYTER = ("JUPYTERHUB_PUBLIC_URL", "JUPYTERHUB_SERVICE_PREFIX")  # of a learner's server, as far as JupyterHub knows
POSITIVE = click.FloatRange(min=0, min_open=True)
SLO_HELP = 'Limits of a good request: "ttft<500ms,tpot<60ms".'
BALANCES = ("l4", "l7", "hash", "client")
Command = Callable[..., Any]

verbose = click.option("-v", "--verbose", is_flag=True, help="Show the exact commands that are run.")
as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON.")
FILE, FOLDER = click.Path(dir_okay=False, path_type=Path), click.Path(file_okay=False, path_type=Path)
A_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)  # one that is there, as the next two
A_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
A_PATH = click.Path(exists=True, path_type=Path)


def gathered(
    name: str, kind: Callable[..., Any], *options: Callable[[Command], Command]
) -> Callable[[Command], Command]:
    """Options that belong together as one value: the command gets ``name``, a ``kind``.

    ``kind`` is a dataclass with a field for the parameter of each of ``options``, which ``--help`` shows in this order.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            value = kind(**{field.name: kwargs.pop(field.name) for field in fields(cast(Any, kind))})
            return command(*args, **{name: value}, **kwargs)

        decorated: Command = wrapped
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


@dataclass(frozen=True)
class ResultOutput:
    """Where a result goes: ``--output`` to a file beside the screen, ``--json`` to the screen instead of a table."""

    output: Path | None
    json_output: bool

    def write(self, document: str) -> None:
        from labkit.disk import atomic_write

        if self.output:
            atomic_write(self.output.absolute(), document)
        if self.json_output:
            click.echo(document)


result_output = gathered(
    "shown", ResultOutput, click.option("--output", type=FILE, help="Also write the result, as JSON, to FILE."), as_json
)


def number_option(
    name: str, default: float | str | None, help: str, type: click.ParamType[Any], metavar: str = "N"
) -> Callable[[Command], Command]:
    """An option that takes a number of ``type``; a ``default`` that is one is shown."""
    return click.option(name, type=type, default=default, show_default=default is not None, metavar=metavar, help=help)


block_size_option = number_option(
    "--block-size", None, "Of a Mooncake trace: tokens of a block, which has one hash.", click.IntRange(1)
)
unit_option = click.option(
    "--unit", type=click.Choice(("ms", "s")), default=None, help="Of a Mooncake trace: the unit of its times."
)


def runtime_option(help: str) -> Callable[[Command], Command]:
    """``--runtime``, which ``LABS_RUNTIME`` gives for a whole terminal; None where a person says neither."""
    return click.option(
        "--runtime",
        type=click.Choice(RUNTIMES),
        envvar="LABS_RUNTIME",
        show_envvar=True,
        show_default=RUNTIMES[0],
        help=help,
    )


stack_argument = click.argument("stack", shell_complete=completion.stacks)
maybe_stack = click.argument(
    "stack", required=False, shell_complete=completion.stacks
)  # of a command that has --endpoint too
model_option = click.option(
    "-m",
    "--model",
    metavar="NAME",
    help="The model to ask. The default is the lab's own.",
    shell_complete=completion.models,
)
replica_option = number_option(
    "--replica", None, "Only this replica (labctl status numbers them).", click.IntRange(1), metavar="K"
)


def plan_options(command: Command) -> Command:
    """``--profile --set --templates --gpu``; the command gets one ``options``."""

    @click.option(
        "--profile",
        type=click.Choice(("cpu", "gpu")),
        default="cpu",
        show_default=True,
        help="cpu: this machine's processor. gpu: an NVIDIA GPU.",
    )
    @click.option(
        "--set",
        "pairs",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a setting; may be repeated (labctl list STACK shows them).",
        shell_complete=completion.settings,
    )
    @click.option("--templates", type=A_FOLDER, metavar="FOLDER", help="Take the model templates from this folder.")
    @click.option(
        "--gpu",
        envvar="CUDA_VISIBLE_DEVICES",
        metavar="ID",
        help="Use these GPUs (gpu profile): numbers or UUIDs, as nvidia-smi -L lists them, with commas between. The "
        "default is CUDA_VISIBLE_DEVICES, else all. A server takes the first, or as many as tp_size says.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any, profile: str, pairs: tuple[str, ...], templates: Path | None, gpu: str | None, **kwargs: Any
    ) -> Any:
        from labkit.disk import resolve_path

        settings = _assignments(pairs) if pairs else {}
        gpus = (gpu or "").replace(" ", "").strip(",") or None
        options = Options(profile, settings, templates and resolve_path(templates), gpus)
        return command(*args, options=options, **kwargs)

    return wrapped


def _assignments(pairs: Sequence[str]) -> Mapping[str, str]:
    """The settings of ``--set``, also under vLLM's names of them."""
    from labctl.recordings.vllm import stack_names
    from labctl.settings import parse_assignments

    return stack_names(parse_assignments(pairs))


def up_options(command: Command) -> Command:
    """``plan_options`` and ``--runtime --ports --timeout``; the command gets one ``options``."""

    @plan_options
    @runtime_option("Run the server in a container, or as a process of this machine.")
    @click.option(
        "--ports",
        default=TRITON_PORTS,
        show_default=True,
        metavar="H,G,M|auto",
        help="The HTTP, gRPC and metrics ports.",
    )
    @number_option(
        "--timeout", None, "Seconds to wait until every model answers (180; 900 on the gpu profile).", POSITIVE, "S"
    )
    @click.option(
        "--allow-client-shm",
        "client_shm",
        is_flag=True,
        help="Let clients register shared memory, which every client can then write to.",
    )
    @number_option("--replicas", None, "Start N servers behind a load balancer.", click.IntRange(1, 32))
    @click.option(
        "--balance",
        type=click.Choice(BALANCES),
        default=None,
        help="How requests reach the replicas: by connection (l4), one by one (l7; the default), by header "
        "x-sequence-id (hash; the default with sequences), or as the client chooses.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, options: Options, **kwargs: Any) -> Any:
        own = {item.name: kwargs.pop(item.name) for item in fields(Options) if item.name in kwargs}
        return command(*args, options=replace(options, **own), **kwargs)

    return wrapped


class _Port(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if value == "auto" else click.IntRange(0, 65535).convert(value, param, ctx)


class Endpoint(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """One or more HOST:PORT, with commas. A port above 65,535 is refused: the C library takes it modulo 65,536, so that
    another server would be asked."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        for one in str(value).split(","):
            host, _, port = one.rpartition(":")
            well_formed = host and host.isprintable() and re.fullmatch("[0-9]{1,5}", port)
            if not well_formed or not 1 <= int(port) <= 65535:
                self.fail(f"{one!r} is no HOST:PORT, such as 127.0.0.1:8001", param, ctx)
        return str(value)


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


def at_jupyter(path: str) -> str | None:
    """Return the address of something that JupyterLab shows, in a class on JupyterHub; None elsewhere."""
    base = next(filter(None, map(os.environ.get, JUPYTER)), None)
    return f"{base.rstrip('/')}/{path}" if base else None


def endpoint_option(what: str) -> Callable[[Command], Command]:
    """``--endpoint HOST:PORT`` of a server that need not be a stack of ours; ``what`` names the port."""
    text = f"Ask the server at this address ({what}), however it was started; no STACK need be up."
    return click.option("--endpoint", type=Endpoint(), help=text)


def require_named(stack: str | None, endpoint: str | None) -> None:
    """Raises UsageError where neither is given."""
    if not stack and not endpoint:
        raise click.UsageError("name a STACK that is up, or a server with --endpoint HOST:PORT")


def model_there(stack: str | None, model: str | None, command: str) -> str:
    """The model to ask at an endpoint: the one that is named, else that of the lab. Raises LabError or UsageError."""
    if model:
        return model
    if not stack:
        raise click.UsageError("--endpoint needs the name of a model (-m NAME), or a STACK, whose model it then is")
    session, lab, name = open_stack(stack)
    return text_model(session, lab, name, f"{command} {{}} --endpoint HOST:PORT", "text-generation model")


def open_session(show_commands: bool = False, whatever_is_broken: bool = False) -> Session:
    """The session of the current folder."""
    from labctl.stack.session import Session

    return Session.open(Console(show_commands), whatever_is_broken)


def open_stack(stack: str, show_commands: bool = False) -> tuple[Session, Lab, str]:
    """The session, and the stack that a word names: its lab and its whole name."""
    session = open_session(show_commands)
    return session, *session.catalog.stack(stack)


def labs_named(session: Session, names: str) -> Sequence[Lab]:
    """The labs of a list with commas; all labs for "". Raises LabError: there is no such lab."""
    return [session.catalog.lab(name.strip()) for name in names.split(",")] if names else session.catalog.labs


def text_model(session: Session, lab: Lab, stack: str, command: str, what: str, why: str | None = None) -> str:
    """The text model of a stack that is asked unless another is named. Raises LabError: the stack has none."""
    if entry := lab.stacks[stack].bench:
        return entry.model
    first, *others = (name for other in session.catalog.labs for name, s in other.stacks.items() if s.bench)
    raise LabError(
        f"{stack} has no {what}",
        why or "",
        f"labctl {command.format(first)} (or {', '.join(others)})",
        code="text-model-none",
    )


def say_left_out(rows: int) -> None:
    """Say on standard error how many rows of a trace are not sent."""
    click.echo(f"  --  {rows} row{'s' if rows > 1 else ''} of the trace without an answer: left out", err=True)
