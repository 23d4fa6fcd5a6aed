"""labctl images build, list, prune."""

from __future__ import annotations

import click

from labctl.cli import options as opt
from labctl.cli.artifacts import show_rows
from labctl.cli.console import show_dry_run
from labctl.runtimes import images
from labctl.runtimes.processes import carry_out
from labctl.runtimes.record import Choices
from labctl.stack.targets import images_to_build
from labkit.errors import LabError


@click.group("images")
def images_command() -> None:
    """Build, list and prune container images, which are named after the sources that they are made of."""


@images_command.command("build")
@opt.stack_argument
@opt.choices
@opt.text_option(
    "--push", "registry", metavar="REGISTRY", help="Also push every image to this registry (registry.example.com/labs)."
)
@opt.dry_option
@opt.verbose
def build(stack: str, choices: Choices, registry: str, dry: bool, verbose: bool) -> None:
    """Build the images of STACK for Swarm and Kubernetes, and print their names.

    They are those that `labctl render STACK --target kubernetes|swarm` names: give it the same --profile and --set.
    Images that are already on this Docker engine are not built again.
    """
    session, lab, name = opt.open_stack(stack, verbose)
    todo, names = images_to_build(session, lab, name, choices, registry.rstrip("/"))
    if dry:
        show_dry_run(todo)
        return
    session.runtime("compose").check("cpu")
    for notice in todo.notices:
        session.listener.note(notice)
    carry_out(todo.actions, session.listener)
    for image in names:
        click.echo(image)


@images_command.command("list")
@opt.as_json
def list_(json_output: bool) -> None:
    """List the labs' images on this Docker engine, and say which of them this checkout uses."""
    columns = {"name": "image", "bytes": "MB", "made": "made", "current": ""}
    show_rows(images.list_built(opt.open_session().workspace), columns, "no image of the labs is here", json_output)


@images_command.command("prune")
@click.argument("names", nargs=-1)
@click.option("--old", is_flag=True, help="Remove all that this checkout does not need (another checkout may).")
@click.option("--all", "every", is_flag=True, help="Remove all of them.")
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
