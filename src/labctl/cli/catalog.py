"""labctl list."""

from __future__ import annotations

import json

import click

from labctl.cli import options as opt
from labctl.manifest.catalog import load
from labctl.tables import table
from labctl.workspace import Workspace


@click.command("list")
@opt.as_json
def list_command(json_output: bool) -> None:
    """List the labs, their stacks and settings."""
    catalog = load(Workspace.find())
    if json_output:
        click.echo(json.dumps([lab.model_dump(by_alias=True, mode="json") for lab in catalog.labs], indent=2))
        return
    rows = [(lab.number, lab.short, ", ".join(lab.stacks), lab.title) for lab in catalog.labs]
    click.echo(table(rows, ("lab", "name", "stacks", "title")))
    for lab in catalog.labs:
        click.echo(f"\nSettings of {lab.short} (--set key=value)")
        for key, setting in lab.settings.items():
            default = setting.default_for("cpu")
            shown = str(default).lower() if isinstance(default, bool) else default
            click.echo(f"  {key:<32} {setting.help}")
            click.echo(f"  {'':<32} {setting.describe()}; default {shown if shown != '' else '(empty)'}")
