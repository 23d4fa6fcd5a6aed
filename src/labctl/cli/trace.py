"""labctl trace."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labkit.errors import LabError
from labkit.printable import printable


@click.group("trace")
def trace_command() -> None:
    """Make a trace of requests, for `labctl bench STACK --trace FILE`, from what other tools have written."""


@trace_command.command("convert")
@click.argument("source", type=opt.A_PATH)
@click.argument("file", type=opt.FILE)
@click.option("--phase", default="", metavar="NAME", help="The phase of a recording (steps-NAME.jsonl).")
def convert_command(source: Path, file: Path, phase: str) -> None:
    """Write the requests of SOURCE into FILE.csv, or as a Mooncake trace into FILE.jsonl.

    SOURCE is a recording (a folder below results/, or of a vLLM of your own), the log of a vLLM server with
    --enable-log-requests, AIPerf's profile_export.jsonl, or GuideLLM's benchmarks.json. A Mooncake trace also has the
    prefixes that prompts share, where the source knows them.
    """
    from labkit.predict import trace_sources, traces
    from labsched import recording
    from labsched.vllm import reader

    if source.is_dir() or reader.is_recording(source) or source.name.startswith("steps-"):
        read = recording.read_recording(source, phase)
        found = trace_sources.Converted([one for one in read.arrivals if one.made])
    else:
        found = trace_sources.convert_trace(source)
    if file.suffix == ".csv":
        traces.write_trace_csv(file, found.arrivals)
    elif file.suffix == ".jsonl":
        traces.write_mooncake_trace(file, found.arrivals)
    else:
        raise LabError(
            f"no trace format ends in '{file.suffix}'",
            str(file),
            "FILE.csv or FILE.jsonl (Mooncake)",
            code="trace-form-unknown",
        )
    for remark in found.remarks:
        say(printable(remark))
    span = found.arrivals[-1].at if found.arrivals else 0.0
    say(printable(f"{file}: {len(found.arrivals):,} requests in {span:,.1f} s"))
