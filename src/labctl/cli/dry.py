"""How a dry run is printed."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence

import click

from labctl.orchestrator.dry_run import DryRun
from labctl.runtimes.base import Shown

dry_option = click.option(
    "--dry-run", "dry", is_flag=True, help="Print every command, file and container that there would be; do nothing."
)


def show(found: DryRun, json_output: bool = False) -> None:
    """Commands first, then the files and the containers, one a line."""
    if json_output:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    click.echo(f"dry run: {found.runtime} runtime, profile {found.profile}; nothing is made")
    for notice in found.notices:
        click.echo(f"  --  {notice}")
    shared = common(found.commands)
    if shared:
        click.echo("\nvariables of every docker compose command below")
        for key, value in shared.items():
            click.echo(f"  {key}={shlex.quote(value)}")
    _title("commands", found.commands)
    for shown in found.commands:
        if shown.title:
            click.echo(f"  # {shown.title}")
        own = [f"{key}={shlex.quote(value)}" for key, value in shown.env.items() if key not in shared]
        click.echo(f"  $ {' '.join([*own, shlex.join(shown.argv)])}")
    for title, lines in (("files", found.files), ("containers", found.containers)):
        _title(title, lines)
        for line in lines:
            click.echo(f"  {line}")


def common(commands: Sequence[Shown]) -> Mapping[str, str]:
    """The variables that all commands with variables have, with the same value; {} where they are too few to tell."""
    every = [shown.env for shown in commands if shown.env]
    if len(every) < 2:
        return {}
    first, *others = every
    return {key: value for key, value in first.items() if all(env.get(key) == value for env in others)}


def _title(text: str, lines: Sequence[object]) -> None:
    click.echo(f"\n{text}{'' if lines else ': none'}")
