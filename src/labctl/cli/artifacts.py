"""labctl weights and labctl engines: make artifacts of one kind, list and prune those in the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from labctl.artifacts.store import ENGINES, WEIGHTS, Store
from labctl.cli import options as opt
from labctl.cli.console import show_dry_run
from labctl.runtimes.layers import layer
from labctl.runtimes.record import Choices
from labctl.stack.build import build_engines, pull_weights
from labkit.tables import table

runtime_option = opt.runtime_option("Work in a container, or in this environment.")


@click.group("weights")
def weights_command() -> None:
    """Fetch or make model weights, and see what is cached."""


@weights_command.command("pull")
@click.argument("what")
@opt.choices
@runtime_option
def pull(what: str, choices: Choices, runtime: str) -> None:
    """Fetch or make the weights of WHAT: a model source, or a stack or lab with its settings."""
    for path in pull_weights(opt.open_session(), what, choices, runtime):
        click.echo(path)


@click.group("engines")
def engines_command() -> None:
    """Build compiled engines, and see what is cached."""


@engines_command.command("build")
@click.argument("stack")
@opt.choices
@runtime_option
@opt.dry_option
@opt.verbose
def build(stack: str, choices: Choices, runtime: str, dry: bool, verbose: bool) -> None:
    """Build the engines of STACK for its settings, and make the weights that they need."""
    session, lab, name = opt.open_stack(stack, verbose, dry=dry)
    paths = build_engines(session, lab, name, choices, runtime)
    if session.todo is not None:
        show_dry_run(session.todo)
        return
    for path in paths:
        click.echo(path)


@engines_command.command("install")
@click.argument("name")
@opt.dry_option
@opt.verbose
def install(name: str, dry: bool, verbose: bool) -> None:
    """Install an engine that is a set of packages of its own: NAME is vllm (local runtime)."""
    session = opt.open_session(verbose, dry=dry)
    session.choose("local", "cpu")
    session.carry_out([layer(name, session.workspace).install()])
    if session.todo is not None:
        show_dry_run(session.todo)


def _add_list_and_prune(group: click.Group, store: Store, columns: Mapping[str, str], empty: str) -> None:
    named = next(iter(columns.values()))

    @group.command("list")
    @opt.as_json
    def list_(json_output: bool) -> None:
        """List what the cache holds."""
        show_rows(store.rows(opt.open_session().workspace), columns, empty, json_output)

    @group.command("prune", help=f"Remove cached {store.name} by their NAMES, each the {named} that the list shows.")
    @click.argument("names", nargs=-1)
    @click.option("--all", "every", is_flag=True, help="Remove all of them.")
    def prune(names: tuple[str, ...], every: bool) -> None:
        if every == bool(names):
            raise click.UsageError(f"name the {named}s to remove, or say --all")
        gone = store.prune(opt.open_session().workspace, None if every else names)
        click.echo(f"removed: {', '.join(gone)}" if gone else "nothing was cached")


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], empty: str, json_output: bool) -> None:
    """Print rows as JSON or as a table: ``columns`` are titles by key; ``empty`` stands for a table without rows."""
    if json_output:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        cells = [[_cell(key, row[key]) for key in columns] for row in rows]
        click.echo(table(cells, list(columns.values()), right=(list(columns).index("bytes"),)))
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
