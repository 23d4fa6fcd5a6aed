"""labctl weights pull, list, prune."""

from __future__ import annotations

import json
import time

import click

from labctl import weights
from labctl.cli import options as opt
from labctl.errors import LabError
from labctl.orchestrator.build import pull_weights
from labctl.orchestrator.plan import Choices
from labctl.tables import table


@click.group("weights")
def weights_command() -> None:
    """Fetch or make model weights, and see what is cached."""


@weights_command.command("pull")
@click.argument("what")
@opt.choices
@click.option("--runtime", type=click.Choice(["auto", "compose", "local"]), default="auto", show_default=True,
              help="Make them in a container, or in this environment.")  # fmt: skip
def pull(what: str, choices: Choices, runtime: str) -> None:
    """Fetch or make the weights of WHAT: a model source, or a stack or lab with its settings."""
    for path in pull_weights(opt.open_session(), what, choices, runtime):
        click.echo(path)


@weights_command.command("list")
@opt.as_json
def list_(json_output: bool) -> None:
    """List what the cache holds."""
    rows = weights.list_cached(opt.open_session().workspace)
    if json_output:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        shown = [
            (r["spec"], f"{r['bytes'] / 1e6:,.0f}", time.strftime("%Y-%m-%d", time.localtime(r["made"]))) for r in rows
        ]
        click.echo(table(shown, ("source", "MB", "made"), right=(1,)))
    else:
        click.echo("nothing is cached (shipped models need no cache)")


@weights_command.command("prune")
@click.argument("specs", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All of them.")
def prune(specs: tuple[str, ...], every: bool) -> None:
    """Remove cached weights by their SPECS."""
    if every == bool(specs):
        raise click.UsageError("name the sources to remove, or say --all")
    workspace = opt.open_session().workspace
    cached = {row["spec"] for row in weights.list_cached(workspace)}
    if unknown := set(specs) - cached:
        raise LabError(f"not in the cache: {', '.join(sorted(unknown))}", "", "labctl weights list")
    gone = weights.prune(workspace, keep=[] if every else sorted(cached - set(specs)))
    click.echo(f"removed: {', '.join(gone)}" if gone else "nothing was cached")
