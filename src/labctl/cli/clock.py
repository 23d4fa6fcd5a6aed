"""labctl clock."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.stack.stack import RunningStack
from labkit.errors import LabError
from labsched.printable import printable

if TYPE_CHECKING:
    from labctl.pages.live.lines import Line

SOON_S = 60.0  # before a pause ends by itself, every command says so


@click.command("clock")
@opt.stack_argument
@click.argument("action", type=click.Choice(["pause", "step", "slow", "run"]))
@click.argument("amount", required=False)
@click.option("-m", "--model", metavar="NAME", help="Only this model's clock.", shell_complete=completion.models)
@opt.replica_option
@opt.as_json
def clock_command(
    stack: str, action: str, amount: str | None, model: str | None, replica: int | None, json_output: bool
) -> None:
    """Stop the schedulers of STACK, step them, slow them down, or let them run.

    \b
    pause        no model begins a step; requests wait, and nothing is lost
    step [N]     N steps (default 1) of each model that has work, then pause
    slow FACTOR  each step takes FACTOR times as long, at most ten seconds longer
    run          as fast as the machine allows
    """
    from labctl.pages.live.lines import clock_of, held_steps

    number = _amount(action, amount)
    session, _, stack_name = opt.open_stack(stack)
    record = RunningStack.require_up(session, stack_name).record.one(replica)
    clock = clock_of(session.workspace, record)
    steps = clock.act(action, number, model, record.endpoints.metrics)
    held = {state["model"]: state for state in held_steps(clock)}
    if json_output:
        click.echo(json.dumps({"stack": stack_name, "clock": clock.modes(), "steps": steps, "held": held}, indent=2))
        return
    for name in record.models:
        if name in steps:
            click.echo(f"{name}: {steps[name]} step{'s' if steps[name] > 1 else ''}")
    if action == "step" and not steps:
        click.echo("nothing waited for a step")
    names = _letters(clock.run_dir, held.values())
    for name, state in held.items():
        say(printable(_describe_held(name, state, names)))
    until = clock.until
    left = until - time.monotonic() if until else math.inf
    if clock.limit and (left < SOON_S or (action == "pause" and left < math.inf)):
        say(f"It goes on by itself in {left:,.0f} s: {clock.limit.why}")


def _amount(action: str, amount: str | None) -> float:
    """The number after the action, or its default. Raises UsageError where it makes no sense."""
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


def _letters(run_dir: Path, held: Collection[Line]) -> Mapping[str, str]:
    """What pages and ``labctl explain`` call the requests of a server; {} where its step logs cannot be read."""
    from labctl.pages.live import story

    lanes = []
    if held:
        with contextlib.suppress(LabError):
            lanes = story.of_stack(run_dir, list(held))
    return lanes[0].names if lanes else {}


def _describe_held(model: str, state: Line, names: Mapping[str, str]) -> str:
    """The step that a clock holds back: its requests, and those that will have to wait."""
    from labkit.evidence.steplog import refusal_reason
    from labsched.step import NOT_RECORDED

    batch, waiting = ([names.get(id, id) for id in state.get(key, ())] for key in ("ids", "waiting"))
    line = f"{model}: the next step is of {', '.join(batch) or 'nobody'}"
    if waiting:
        line += f"; {', '.join(waiting)} will wait: {refusal_reason(state) or NOT_RECORDED}"
    return line
