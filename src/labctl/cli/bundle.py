"""labctl bundle create."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.labs.bundle import create


@click.group("bundle")
def bundle_command() -> None:
    """Pack the labs for a machine without a network."""


@bundle_command.command("create")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--labs", "names", default="", metavar="LAB,LAB", help="Only what these labs need (default: all labs).")
@click.option("--images", is_flag=True, help="Include the container images; needs Docker.")
@opt.verbose
def create_command(file: Path, names: str, images: bool, verbose: bool) -> None:
    """Write FILE with the checkout, locked wheels, weights and engines.

    On the other machine, in an empty folder: tar xf FILE && ./install, then make lab-iterative.
    """
    session = opt.open_session(verbose)
    labs = [session.catalog.lab(name.strip()) for name in names.split(",")] if names else session.catalog.labs
    size = create(session, labs, file.absolute(), images)
    click.echo(f"{file}: {size / 1e9:.2f} GB; on the other machine: tar xf {file.name} && ./install")
