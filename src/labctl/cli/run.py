"""labctl run."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.cli.dry import dry_option, show
from labctl.errors import LabError
from labctl.orchestrator.run import dry_run, run
from labctl.orchestrator.up import UpOptions
from labctl.orchestrator.verdicts import MET, NOT_MET, UNMEASURED
from labctl.watch import replay
from labctl.workspace import atomic_write

COLORS = {MET: "green", NOT_MET: "red", UNMEASURED: "yellow"}
WIDTH = max(map(len, COLORS))


@click.command("run")
@click.argument("lab")
@opt.up_options
@click.option("--quick", is_flag=True, help="A shorter run, at most 90 s with everything cached.")
@click.option("--keep", is_flag=True, help="Leave the last stack up.")
@click.option("--texts", is_flag=True, help="Record every answer's text for timeline.html (up to 0.1 ms a step).")
@click.option("--strict", is_flag=True, help="Exit 1 when a verdict is not met.")
@opt.replica_option
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here too.")
@dry_option
@opt.verbose
def run_command(
    lab: str, options: UpOptions, quick: bool, keep: bool, texts: bool, strict: bool, replica: int | None,
    json_file: Path | None, dry: bool, verbose: bool,
) -> None:  # fmt: skip
    """Run the whole of LAB: up, its clients, the verdict, down. LAB is a number, a short name or a stack's name."""
    session = opt.open_session(verbose)
    began = time.monotonic()
    taught = session.catalog.lab(lab)
    only = lab if lab in taught.stacks and len(taught.stacks) > 1 else ""
    if dry:
        show(dry_run(session, taught, options, quick, only))
        return
    outcome = run(session, taught, options, quick, keep, only, texts, replica)
    replay.write(outcome.folder)
    click.echo()
    for verdict in outcome.verdicts:
        click.echo(f"{click.style(f'{verdict.word:<{WIDTH}}', fg=COLORS[verdict.word])}  {verdict.text}")
        if verdict.hint:
            click.echo(f"{'':<{WIDTH}}  {verdict.hint}")
    if outcome.edited:
        click.echo(f"\nedited: {', '.join(outcome.edited)}")
    click.echo(f"\nresults in {_short(outcome.folder)} ({time.monotonic() - began:.0f} s)")
    for path in sorted(outcome.folder.iterdir()):
        if path.suffix in (".png", ".md", ".html") or path.name in ("result.json", "trace.json"):
            click.echo(f"  {path.name}")
    if json_file:
        document = {**outcome.result, "verdicts": [asdict(verdict) for verdict in outcome.verdicts]}
        atomic_write(json_file.absolute(), json.dumps(document, indent=2))
    if strict and outcome.missed:
        raise LabError(
            "a verdict was not met", ", ".join(outcome.missed), "the numbers are in result.json and report.md"
        )


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
