"""labctl workshop."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.learn import group
from labkit.errors import LabError
from labkit.tables import table


@click.group("workshop")
def workshop_command() -> None:
    """Commands for the instructor of a workshop."""


@workshop_command.command("report")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def report_command(files: tuple[Path, ...]) -> None:
    """Show the progress of a group as one table.

    FILES are what `labctl exercise list --json` printed on each machine, named after its owner: ada.json, bo.json.
    """
    learners, bad = group.read(files)
    for sentence in bad:
        click.echo(f"left out: {sentence}", err=True)
    if not learners:
        raise LabError("none of the files can be read", "", "labctl exercise list --json > NAME.json, on each machine")
    header, rows = group.rows(learners)
    click.echo(table(rows, header, right=range(1, len(header))))
    click.echo(f"\n{group.SIGN['passed']} passed   {group.SIGN['started']} started   {group.SIGN['new']} new")
