"""labctl pace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.cli.predict import phase_option, result_argument
from labkit.tables import format_table

if TYPE_CHECKING:
    from labsched.pace import Pace

CONTEXT = 800  # tokens, as in the published test of lab 05
DECODING, PROMPTS = (1, 8, 64), (512, 2048, 7168)
SHAPE = "llama-2-7b"


@click.group("pace")
def pace_command() -> None:
    """The GPUs whose times a server's steps can take (--set pace=NAME), in slow motion."""


@pace_command.command("list")
@opt.as_json
def pace_list_command(json_output: bool) -> None:
    """Show what each device says that a step takes, with Llama-2-7B in 16 bits."""
    from labsched.pace import DEVICES, MEASURED, Pace

    devices = {name: Pace.of(name, SHAPE, "1") for name in (*DEVICES, *MEASURED)}
    _show({name: pace for name, pace in devices.items() if pace}, json_output, {})


@pace_command.command("measure")
@result_argument
@phase_option
@opt.as_json
def measure_(result: Path, phase: str | None, json_output: bool) -> None:
    """Make a device of the steps that were recorded in RESULT.

    RESULT is a folder below results/, or one steps-PHASE.jsonl of it.
    """
    from labsched.pace import DEVICES, OWN, Pace
    from labsched.replay import recording
    from labsched.replay.fitting import measure_device

    found = measure_device(recording.read_recording(result, phase).steps)
    devices = {name: Pace.of(name, SHAPE, "1") for name in DEVICES}
    shown = {name: pace for name, pace in devices.items() if pace} | {OWN: Pace(found.costs, 1.0)}
    facts = {"pace_table": found.costs.text, "steps": found.steps, "said_s": found.said_s, "took_s": found.took_s}
    _show(shown, json_output, facts)
    if not json_output:
        say(
            f"\nby these costs the {found.steps:,} recorded steps take {found.said_s:.2f} s, and they took "
            f"{found.took_s:.2f} s"
        )
        say(f"\n--set pace=measured --set pace_table={found.costs.text}")


def _show(devices: Mapping[str, Pace], json_output: bool, facts: Mapping[str, Any]) -> None:
    steps = {name: {device: pace.seconds(*work) for device, pace in devices.items()} for name, work in _steps().items()}
    if json_output:
        click.echo(json.dumps({"seconds": steps, **facts}, indent=1))
        return
    rows = [(name, *(f"{1e3 * seconds:.1f}" for seconds in said.values())) for name, said in steps.items()]
    say(format_table(rows, ("a step, ms", *devices), right=range(1, 1 + len(devices))))


def _steps() -> dict[str, tuple[list[int], list[int]]]:
    """The tokens and the contexts of the requests in a step, by its words."""
    decoding = {f"{n} decoding, context {CONTEXT}": ([1] * n, [CONTEXT] * n) for n in DECODING}
    prompts = {f"{n:,} prompt tokens": ([512] * (n // 512),) * 2 for n in PROMPTS}
    return {**decoding, **prompts}
