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
from labctl.orchestrator.dry_run import dry_run
from labctl.orchestrator.run import run
from labctl.orchestrator.up import UpOptions
from labctl.workspace import atomic_write


@click.command("run")
@click.argument("lab")
@opt.up_options
@click.option("--quick", is_flag=True, help="A shorter run, at most 90 s with everything cached.")
@click.option("--keep", is_flag=True, help="Leave the last stack up.")
@click.option("--strict", is_flag=True, help="Exit 1 when a verdict is not met.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here too.")
@dry_option
@opt.verbose
def run_command(
    lab: str, options: UpOptions, quick: bool, keep: bool, strict: bool, json_file: Path | None, dry: bool,
    verbose: bool,
) -> None:  # fmt: skip
    """Run the whole of LAB: up, its clients, the verdict, down. LAB is a number, a short name or a stack's name."""
    session = opt.open_session(verbose)
    began = time.monotonic()
    found = session.catalog.lab(lab)
    only = lab if lab in found.stacks and len(found.stacks) > 1 else ""
    if dry:
        show(dry_run(session, found, options, quick, only))
        return
    outcome = run(session, found, options, quick, keep, only)
    click.echo()
    for verdict in outcome.verdicts:
        mark = click.style("  met ", fg="green") if verdict.met else click.style("NOT MET", fg="red")
        click.echo(f"{mark}  {verdict.text}")
    click.echo(f"\nresults in {_short(outcome.folder)} ({time.monotonic() - began:.0f} s)")
    for path in sorted(outcome.folder.iterdir()):
        if path.suffix in (".png", ".md") or path.name in ("result.json", "trace.json"):
            click.echo(f"  {path.name}")
    if json_file:
        document = {**outcome.result, "verdicts": [asdict(verdict) for verdict in outcome.verdicts]}
        atomic_write(json_file.absolute(), json.dumps(document, indent=2))
    missed = [verdict.name for verdict in outcome.verdicts if not verdict.met]
    if strict and missed:
        raise LabError("a verdict was not met", ", ".join(missed), "the numbers are in result.json and report.md")


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
