"""labctl images list, prune."""

from __future__ import annotations

import json
import time

import click

from labctl.cli import options as opt
from labctl.errors import LabError
from labctl.runtimes import images
from labctl.tables import table


@click.group("images")
def images_command() -> None:
    """The images of the compose runtime: named after the sources that they are made of."""


@images_command.command("list")
@opt.as_json
def list_(json_output: bool) -> None:
    """The labs' images on this Docker engine, and which of them this checkout uses."""
    rows = images.list_built(opt.open_session().workspace)
    if json_output:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        shown = [
            (
                row["name"],
                f"{row['bytes'] / 1e6:,.0f}",
                time.strftime("%Y-%m-%d", time.localtime(row["made"])),
                "in use" if row["current"] else "old",
            )
            for row in rows
        ]
        click.echo(table(shown, ("image", "MB", "made", ""), right=(1,)))
    else:
        click.echo("no image of the labs is here")


@images_command.command("prune")
@click.argument("names", nargs=-1)
@click.option("--old", is_flag=True, help="All that this checkout does not need (another checkout may).")
@click.option("--all", "every", is_flag=True, help="All of them.")
def prune(names: tuple[str, ...], old: bool, every: bool) -> None:
    """Remove images of the labs by their NAMES."""
    if sum((bool(names), old, every)) != 1:
        raise click.UsageError("name the images to remove, or say --old or --all")
    rows = images.list_built(opt.open_session().workspace)
    if unknown := set(names) - {row["name"] for row in rows}:
        raise LabError(f"no such image: {', '.join(sorted(unknown))}", "", "labctl images list")
    chosen = [row["name"] for row in rows if every or row["name"] in names or (old and not row["current"])]
    gone, kept = images.remove(chosen)
    click.echo(f"removed: {', '.join(gone)}" if gone else "nothing was removed")
    if kept:
        raise LabError(f"not removed: {', '.join(kept)}", "containers use them", "labctl down --all")
