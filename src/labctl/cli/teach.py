"""labctl workshop: for the person who teaches."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli.arena import show_class
from labctl.learn import group
from labkit.errors import LabError
from labkit.tables import format_table


@click.group("workshop")
def workshop_command() -> None:
    """Commands for the instructor of a workshop."""


@workshop_command.command("report")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--seed", default="1", metavar="WORD", help="Of the arena's hidden traces.")
def report_command(files: tuple[Path, ...], seed: str) -> None:
    """Show the progress of a group, or a round of the arena, as one table.

    FILES are what `labctl exercise list --json` printed on each machine (ada.json), or policies of the arena (ada.py).
    """
    if all(path.suffix == ".py" for path in files):
        show_class(files, seed)
        return
    learners, bad = group.read_group_progress(files)
    for sentence in bad:
        click.echo(f"left out: {sentence}", err=True)
    if not learners:
        raise LabError(
            "none of the files can be read",
            "",
            "labctl exercise list --json > NAME.json, on each machine",
            code="reports-unreadable",
        )
    header, rows = group.progress_rows(learners)
    click.echo(format_table(rows, header, right=range(1, len(header))))
    click.echo(f"\n{group.SIGN['passed']} passed   {group.SIGN['started']} started   {group.SIGN['new']} new")
