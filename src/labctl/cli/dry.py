"""How a dry run is printed."""

from __future__ import annotations

import dataclasses
import json
import shlex

import click

from labctl.orchestrator.dry_run import DryRun

dry_option = click.option(
    "--dry-run", "dry", is_flag=True, help="Print every command, file and container that would be made; make nothing."
)


def show(found: DryRun, json_output: bool = False) -> None:
    """Commands first, then the files and the containers, one a line."""
    if json_output:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    click.echo(f"dry run: {found.runtime} runtime, profile {found.profile}; nothing is made")
    for notice in found.notices:
        click.echo(f"  --  {notice}")
    sections = {
        "commands": [
            " ".join([*(f"{k}={shlex.quote(v)}" for k, v in shown.env.items()), shlex.join(shown.argv)])
            for shown in found.commands
        ],
        "files": found.files,
        "containers": found.containers,
    }
    for title, lines in sections.items():
        click.echo(f"\n{title}{'' if lines else ': none'}")
        for line in lines:
            click.echo(f"  {'$ ' if title == 'commands' else ''}{line}")
