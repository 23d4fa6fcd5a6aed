"""labctl trace."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labkit.errors import LabError
from labsched.printable import printable


@click.group("trace")
def trace_command() -> None:
    """Make a trace of requests, for `labctl bench STACK --trace FILE`."""


@trace_command.command("convert")
@click.argument("source", type=opt.A_PATH)
@click.argument("file", type=opt.FILE)
@click.option("--phase", metavar="NAME", help="The phase of a recording (steps-NAME.jsonl).")
@opt.block_size_option
@opt.unit_option
def convert_command(source: Path, file: Path, phase: str | None, block_size: int | None, unit: str | None) -> None:
    """Write the requests of SOURCE into FILE.csv, or as a Mooncake trace into FILE.jsonl.

    SOURCE is a recording (a folder below results/, or of a vLLM of your own), or a trace. A Mooncake trace also has the
    prefixes that prompts share: blocks of 512 tokens, times in ms.
    """
    from labctl.labs import traces
    from labsched.replay import recording
    from labsched.vllm import reader

    if source.is_dir() or reader.is_recording(source) or source.match("steps-*.jsonl"):
        arrivals = [one for one in recording.read_recording(source, phase).arrivals if one.made]
    else:
        arrivals = traces.read_trace(source, None, opt.say_left_out, traces.MooncakeForm(block_size, unit))
    if file.suffix == ".csv":
        traces.write_trace_csv(file, arrivals)
    elif file.suffix == ".jsonl":
        traces.write_mooncake_trace(file, arrivals)
    else:
        raise LabError(
            f"no trace format ends in '{file.suffix}'",
            str(file),
            "FILE.csv or FILE.jsonl (Mooncake)",
            code="trace-form-unknown",
        )
    say(printable(f"{file}: {traces.describe_trace(arrivals)}"))
