"""labctl shell: a shell beside a running stack."""

from __future__ import annotations

import click

from labctl.cli import options as opt
from labctl.stack.stack import RunningStack


@click.command("shell")
@opt.stack_argument
@opt.verbose
def shell_command(stack: str, verbose: bool) -> int:
    """Open a shell beside STACK, which must be up: in a container of its network, or here.

    It has labctl, Python, curl and an editor, and the addresses as TRITON_HTTP, TRITON_GRPC and TRITON_METRICS. In a
    container it may write into results/ alone. Its exit status is the shell's.
    """
    session, _, name = opt.open_stack(stack, verbose)
    there = RunningStack.require_up(session, name)
    return there.runtime.client(session.listener, None, there.record)
