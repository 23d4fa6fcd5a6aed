"""labctl run."""

from __future__ import annotations

import json
import time

import click

from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import is_terminal, say, say_folder
from labctl.cli.guess import ask_guess, show_guess
from labctl.labs.run import RunResult, run_lab
from labctl.labs.verdicts import BUSY, MET, NOT_MET, UNMEASURED
from labctl.learn.progress import Progress
from labctl.options import Options
from labctl.pages.live import replay
from labkit.errors import LabError
from labkit.evidence.results import flatten

COLORS = {MET: "green", NOT_MET: "red", UNMEASURED: "yellow", BUSY: "yellow"}
WIDTH = max(map(len, COLORS))


@click.command("run")
@click.argument("lab", shell_complete=completion.labs)
@opt.up_options
@click.option("--quick", is_flag=True, help="A shorter run, at most 90 s with everything cached.")
@click.option("--keep", is_flag=True, help="Leave the last stack up.")
@click.option("--texts", is_flag=True, help="Record every answer's text for timeline.html (up to 0.1 ms a step).")
@click.option("--no-guess", is_flag=True, help="Do not ask for a guess first, as is done at a terminal.")
@click.option("--strict", is_flag=True, help="Exit 1 when a verdict is not met.")
@opt.replica_option
@opt.result_output
@opt.verbose
def run_command(
    lab: str,
    options: Options,
    quick: bool,
    keep: bool,
    texts: bool,
    no_guess: bool,
    strict: bool,
    replica: int | None,
    shown: opt.ResultOutput,
    verbose: bool,
) -> None:
    """Run the whole of LAB: up, its clients, the verdict, down. LAB is a number or a short name."""
    session = opt.open_session(verbose)
    taught = session.catalog.lab(lab)
    asks = taught.guess and is_terminal() and not no_guess and not shown.json_output
    guessed = ask_guess(taught.guess) if taught.guess and asks else None
    began = time.monotonic()
    outcome = run_lab(session, taught, options, quick, keep, texts, replica)
    replay.write_timeline_page(outcome.folder)
    shown.write(json.dumps(outcome.result, indent=2))
    if not shown.json_output:
        _show(outcome, time.monotonic() - began)
    if taught.guess and guessed is not None:
        measured = show_guess(taught.guess, guessed, flatten(outcome.result.get("metrics", {})))
        Progress(session.workspace).record_guess(taught.number, guessed, measured)
    if strict and outcome.missed:
        raise LabError(
            "a verdict was not met",
            ", ".join(outcome.missed),
            "the numbers are in result.json and report.md",
            code="verdict-missed",
        )


def _show(outcome: RunResult, seconds: float) -> None:
    click.echo()
    for verdict in outcome.verdicts:
        beside = " " * (WIDTH + 2)
        say(f"{verdict.word:<{WIDTH}}  {verdict.text}", hanging=beside, word=verdict.word, fg=COLORS[verdict.word])
        if verdict.hint:
            say(beside + verdict.hint, hanging="")
    if outcome.paced:
        say(f"\n{outcome.paced}")
    say_folder(outcome.folder, outcome.edited, f" ({seconds:.0f} s)")
    for path in sorted(outcome.folder.iterdir()):
        if path.suffix in (".png", ".md", ".html") or path.name in ("result.json", "trace.json"):
            click.echo(f"  {path.name}")
