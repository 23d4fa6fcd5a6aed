"""labctl clock."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labkit.printable import printable

SOON_S = 60.0  # before a pause ends by itself, every command says so


@click.command("clock")
@opt.stack_argument
@click.argument("action", type=click.Choice(["pause", "step", "slow", "run"]))
@click.argument("amount", required=False)
@click.option("-m", "--model", default="", metavar="NAME", help="Only this model's clock.")
@opt.replica_option
@opt.as_json
def clock_command(
    stack: str, action: str, amount: str | None, model: str, replica: int | None, json_output: bool
) -> None:
    """Stop the schedulers of STACK, step them, slow them down, or let them run.

    \b
    pause        no model begins a step; requests wait, and nothing is lost
    step [N]     N steps (default 1) of each model that has work, then pause
    slow FACTOR  each step takes FACTOR times as long
    run          as fast as the machine allows
    """
    from labctl.pages.live.lines import clock_of, held_steps

    number = _amount(action, amount)
    session, _, name = opt.open_stack(stack)
    record = session.require_up(name).record.one(replica)
    clock = clock_of(session.workspace, record)
    done = clock.act(action, number, model, record.endpoints.metrics)
    waits = {state["model"]: state for state in held_steps(clock)}
    if json_output:
        click.echo(json.dumps({"stack": name, "clock": clock.modes(), "steps": done, "held": waits}, indent=2))
        return
    for one in record.models:
        if one in done:
            click.echo(f"{one}: {done[one]} step{'s' if done[one] > 1 else ''}")
    if action == "step" and not done:
        click.echo("nothing waited for a step")
    for one, state in waits.items():
        say(printable(_waiting(one, state)))
    left = clock.until - time.monotonic() if clock.until else math.inf
    if clock.limit and (left < SOON_S or (action == "pause" and left < math.inf)):
        say(f"It goes on by itself in {left:,.0f} s: {clock.limit.why}")


def _amount(action: str, amount: str | None) -> float:
    """What was asked for after the action; click.UsageError where it makes no sense."""
    if action in ("pause", "run"):
        if amount is not None:
            raise click.UsageError(f"{action} takes nothing after it")
        return 0
    if amount is None and action == "slow":
        raise click.UsageError("slow takes a factor, such as 20")
    try:
        number = float(amount or 1)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise click.UsageError(f"'{amount}' is not a number")
    if action == "step" and (number < 1 or number != int(number)):
        raise click.UsageError("step takes a whole number of at least 1")
    return number


def _waiting(model: str, state: Mapping[str, Any]) -> str:
    from labctl.pages.live.story import refusal_reason

    line = f"{model}: the next step is of {', '.join(state.get('ids', [])) or 'nobody'}"
    if state.get("waiting"):
        line += f"; {', '.join(state['waiting'])} will wait: {refusal_reason({'why': '', **state})}"
    return line
