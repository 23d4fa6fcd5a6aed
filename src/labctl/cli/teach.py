"""labctl bundle: for the person who teaches."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.labs.bundle import create


@click.group("bundle")
def bundle_command() -> None:
    """Pack the labs for a machine without a network."""


@bundle_command.command("create")
@click.argument("file", type=opt.FILE)
@click.option("--labs", "names", default="", metavar="LAB,LAB", help="Only what these labs need (default: all labs).")
@click.option("--images", is_flag=True, help="Include the container images; needs Docker.")
@click.option("--vllm", is_flag=True, help="Include vLLM (1.3 GB), for lab 08 and --set engine=vllm.")
@opt.verbose
def create_command(file: Path, names: str, images: bool, vllm: bool, verbose: bool) -> None:
    """Write FILE with the checkout, locked wheels, weights and engines.

    On the other machine, in an empty folder: tar xf FILE && ./install, then make lab-iterative.
    """
    session = opt.open_session(verbose)
    labs = opt.labs_named(session, names)
    size = create(session, labs, file.absolute(), images, ["vllm"] if vllm else [])
    click.echo(f"{file}: {size / 1e9:.2f} GB; on the other machine: tar xf {file.name} && ./install")
