"""labctl new."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from labctl.bundle.folder import make_folder


@click.command("new")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def new_command(folder: Path) -> None:
    """Make DIR, a working folder with all files of a checkout.

    DIR is empty or not there yet. Every command works in it as in a clone.
    """
    count = make_folder(folder)
    click.echo(
        f"{folder}: {count:,} files\n\n"
        f"next:  cd {shlex.quote(str(folder))}\n"
        "       make setup                       # .venv with Triton and everything that the labs need\n"
        "       source .venv/bin/activate        # once in each terminal\n"
        "       labctl run iterative --quick"
    )
