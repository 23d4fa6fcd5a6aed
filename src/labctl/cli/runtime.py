"""labctl runtime and labctl shell: where stacks run, and a shell beside one."""

from __future__ import annotations

import click

from labctl.cli import options as opt
from labctl.workspace import RUNTIMES

OPEN = "not settled: containers where this checkout's images are, else processes of this machine"


@click.command("runtime")
@click.argument("name", required=False, type=click.Choice((*RUNTIMES, "auto")))
def runtime_command(name: str | None) -> None:
    """Settle where stacks of this checkout run when nobody says --runtime; without NAME, say it.

    auto leaves it open again. What runs now stays where it is.
    """
    session = opt.open_session(whatever_is_broken=True)
    if name in RUNTIMES:
        session.runtime(name).check("cpu")
    if name:
        session.workspace.settle_runtime("" if name == "auto" else name)
    click.echo(session.workspace.settled_runtime or OPEN)


@click.command("shell")
@opt.stack_argument
@opt.verbose
def shell_command(stack: str, verbose: bool) -> int:
    """Open a shell beside STACK, which must be up: in a container of its network, or here.

    It has labctl, Python, curl and an editor, and the addresses as TRITON_HTTP, TRITON_GRPC and TRITON_METRICS. In a
    container /labs/results is this checkout's results/. Its exit status is the shell's.
    """
    session, _, name = opt.open_stack(stack, verbose)
    there = session.require_up(name)
    return there.runtime.shell(session.listener, there.record)
