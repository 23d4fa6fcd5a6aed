"""labctl weights, engines, images and render: what is made before a server is started, and what is kept of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from labctl.artifacts.store import ENGINES, WEIGHTS, Store
from labctl.cli import completion
from labctl.cli import options as opt
from labctl.options import Options
from labctl.runtimes import images
from labctl.runtimes.layers import layer
from labctl.stack.build import build_engines, build_images, pull_weights, render_stack
from labctl.workspace import RUNTIMES
from labkit.errors import LabError
from labkit.tables import format_table

runtime_option = opt.runtime_option("Work in a container, or in this environment.")


@click.group("weights")
def weights_command() -> None:
    """Fetch or make model weights, and see what is cached."""


@weights_command.command("pull")
@click.argument("what", shell_complete=completion.labs_and_stacks)
@opt.plan_options
@runtime_option
@opt.verbose
def weights_pull_command(what: str, options: Options, runtime: str | None, verbose: bool) -> None:
    """Fetch or make the weights of WHAT: a model source, or a stack or lab with its settings."""
    for path in pull_weights(opt.open_session(verbose), what, options, runtime):
        click.echo(path)


@click.group("engines")
def engines_command() -> None:
    """Install or build engines, and see what is cached."""


@engines_command.command("build")
@opt.stack_argument
@opt.plan_options
@runtime_option
@opt.verbose
def engines_build_command(stack: str, options: Options, runtime: str | None, verbose: bool) -> None:
    """Build the engines of STACK for its settings, and make the weights that they need."""
    session, lab, name = opt.open_stack(stack, verbose)
    for path in build_engines(session, lab, name, options, runtime):
        click.echo(path)


@engines_command.command("install")
@click.argument("name")
@click.option("--profile", type=click.Choice(["cpu", "gpu"]), help="Which build; default: what fits this machine.")
@opt.verbose
def install(name: str, profile: str | None, verbose: bool) -> None:
    """Install an engine that is a set of packages of its own: NAME is vllm (local runtime)."""
    session = opt.open_session(verbose)
    session.choose("local", "cpu")
    layer(name, session.workspace, profile).install(session.listener)


def _add_list_and_prune(group: click.Group, store: Store, columns: Mapping[str, str], empty: str) -> None:
    named = next(iter(columns.values()))

    @group.command("list")
    @opt.as_json
    def list_(json_output: bool) -> None:
        """List what the cache holds."""
        _show_rows(store.rows(opt.open_session().workspace), columns, empty, json_output)

    @group.command("prune", help=f"Remove cached {store.name} by their NAMES, each the {named} that the list shows.")
    @click.argument("names", nargs=-1)
    @click.option("--all", "every", is_flag=True, help="Remove all of them.")
    def prune(names: tuple[str, ...], every: bool) -> None:
        if every == bool(names):
            raise click.UsageError(f"name the {named}s to remove, or say --all")
        gone = store.prune(opt.open_session().workspace, None if every else names)
        click.echo(f"removed: {', '.join(gone)}" if gone else "nothing was cached")


def _show_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], empty: str, json_output: bool) -> None:
    """Print rows as JSON or as a table: ``columns`` are titles by key; ``empty`` stands for a table without rows."""
    if json_output:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        cells = [[_cell(key, row[key]) for key in columns] for row in rows]
        click.echo(format_table(cells, list(columns.values()), right=(list(columns).index("bytes"),)))
    else:
        click.echo(empty)


def _cell(key: str, value: Any) -> str:
    match key:
        case "bytes":
            return f"{value / 1e6:,.0f}"
        case "made":
            return time.strftime("%Y-%m-%d", time.localtime(value))
        case "options":
            return " ".join(f"{option}={chosen}" for option, chosen in value.items())
        case "current":
            return "in use" if value else "old"
    return str(value)


_add_list_and_prune(
    weights_command,
    WEIGHTS,
    {"spec": "source", "bytes": "MB", "made": "made", "state": "state"},
    "nothing is cached (shipped models need no cache)",
)
_add_list_and_prune(
    engines_command,
    ENGINES,
    {"key": "key", "source": "source", "options": "options", "bytes": "MB", "made": "made", "state": "state"},
    "nothing is cached",
)


@click.group("images")
def images_command() -> None:
    """Build, list and prune container images, which are named after the sources that they are made of."""


@images_command.command("build")
@opt.stack_argument
@opt.plan_options
@opt.verbose
def images_build_command(stack: str, options: Options, verbose: bool) -> None:
    """Build the images of STACK for its settings, and print their names, the server's first.

    Images that are already on this Docker engine are not built again.
    """
    session, lab, name = opt.open_stack(stack, verbose)
    session.choose("compose", "cpu")
    for image in build_images(session, lab, name, options):
        click.echo(image)


@images_command.command("list")
@opt.as_json
def list_images(json_output: bool) -> None:
    """List the labs' images on this Docker engine, and say which of them this checkout uses."""
    columns = {"name": "image", "bytes": "MB", "made": "made", "current": ""}
    _show_rows(images.list_built(opt.open_session().workspace), columns, "no image of the labs is here", json_output)


@images_command.command("prune")
@click.argument("names", nargs=-1)
@click.option("--old", is_flag=True, help="Remove all that this checkout does not need (another checkout may).")
@click.option("--all", "every", is_flag=True, help="Remove all of them.")
def prune_images(names: tuple[str, ...], old: bool, every: bool) -> None:
    """Remove images of the labs by their NAMES."""
    if sum((bool(names), old, every)) != 1:
        raise click.UsageError("name the images to remove, or say --old or --all")
    rows = images.list_built(opt.open_session().workspace)
    if unknown := set(names) - {row["name"] for row in rows}:
        raise LabError(f"no such image: {', '.join(sorted(unknown))}", "", "labctl images list", code="image-unknown")
    chosen = [row["name"] for row in rows if every or row["name"] in names or (old and not row["current"])]
    gone, kept = images.remove_images(chosen)
    click.echo(f"removed: {', '.join(gone)}" if gone else "nothing was removed")
    if kept:
        raise LabError(
            f"not removed: {', '.join(kept)}", "containers use them", "labctl down --all", code="image-in-use"
        )


@click.command("render")
@opt.stack_argument
@opt.plan_options
@opt.runtime_option("Write the paths that a server on this runtime will see.")
@click.option(
    "--output", type=opt.FOLDER, metavar="FOLDER", help="Write to this folder. The default is the stack's own."
)
def render_command(stack: str, options: Options, runtime: str | None, output: Path | None) -> None:
    """Render STACK's model repository: no weights are fetched, no engine is built, nothing is started.

    While STACK is up, name another folder with --output: its server reads the default one.

    With --runtime compose, and `docker compose --env-file .labs/STACK/compose.env up --wait` after it, the stack is
    served by hand.
    """
    session, lab, name = opt.open_stack(stack)
    runner = session.runtime(runtime or RUNTIMES[0])
    click.echo(render_stack(session, lab, name, options, runner, output and output.absolute()))
