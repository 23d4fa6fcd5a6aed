"""labctl engines build, list, prune."""

from __future__ import annotations

import json
import time

import click

from labctl import engines
from labctl.cli import options as opt
from labctl.cli.dry import dry_option, show
from labctl.errors import LabError
from labctl.orchestrator.build import build_engines, dry_build
from labctl.orchestrator.plan import Choices
from labctl.tables import table


@click.group("engines")
def engines_command() -> None:
    """Build compiled engines, and see what is cached."""


@engines_command.command("build")
@click.argument("stack")
@opt.choices
@click.option("--runtime", type=click.Choice(["auto", "compose", "local"]), default="auto", show_default=True,
              help="Build them in a container, or in this environment.")  # fmt: skip
@dry_option
@opt.verbose
def build(stack: str, choices: Choices, runtime: str, dry: bool, verbose: bool) -> None:
    """Build the engines of STACK for its settings, and make the weights that they need."""
    session = opt.open_session(verbose)
    lab, name = session.catalog.stack(stack)
    if dry:
        show(dry_build(session, lab, name, choices, runtime))
        return
    for path in build_engines(session, lab, name, choices, runtime):
        click.echo(path)


@engines_command.command("list")
@opt.as_json
def list_(json_output: bool) -> None:
    """List what the cache holds."""
    rows = engines.list_cached(opt.open_session().workspace)
    if json_output:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        shown = [
            (
                r["key"],
                r["source"],
                " ".join(f"{key}={value}" for key, value in r["options"].items()),
                f"{r['bytes'] / 1e6:,.0f}",
                time.strftime("%Y-%m-%d", time.localtime(r["made"])),
            )
            for r in rows
        ]
        click.echo(table(shown, ("key", "source", "options", "MB", "made"), right=(3,)))
    else:
        click.echo("nothing is cached")


@engines_command.command("prune")
@click.argument("keys", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All of them.")
def prune(keys: tuple[str, ...], every: bool) -> None:
    """Remove cached engines by their KEYS."""
    if every == bool(keys):
        raise click.UsageError("name the engines to remove, or say --all")
    workspace = opt.open_session().workspace
    cached = {row["key"] for row in engines.list_cached(workspace)}
    if unknown := set(keys) - cached:
        raise LabError(f"not in the cache: {', '.join(sorted(unknown))}", "", "labctl engines list")
    gone = engines.prune(workspace, keep=[] if every else sorted(cached - set(keys)))
    click.echo(f"removed: {', '.join(gone)}" if gone else "nothing was cached")
