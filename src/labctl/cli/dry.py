"""How a dry run is printed."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence

import click

from labctl.runtimes.processes import Command
from labctl.stack.session import Todo

dry_option = click.option(
    "--dry-run", "dry", is_flag=True, help="Print every command, file and container that would be made; do nothing."
)


def show(todo: Todo, json_output: bool = False) -> None:
    """Commands first, then the files and the containers, one a line."""
    commands = [(action.title, command) for action in todo.actions for command in action.commands]
    files = list(_once(file for action in todo.actions for file in action.files))
    containers = list(_once(_anybodys(command.container) for _, command in commands if command.container))
    if json_output:
        click.echo(json.dumps(_document(todo, commands, files, containers), indent=2))
        return
    click.echo(f"dry run: {todo.runtime} runtime, profile {todo.profile}; nothing is made")
    for notice in todo.notices:
        click.echo(f"  --  {notice}")
    shared = common([command for _, command in commands])
    if shared:
        click.echo("\nvariables of every command below that has any")
        for key, value in shared.items():
            click.echo(f"  {key}={shlex.quote(value)}")
    _heading("commands", commands)
    said = ""
    for action in todo.actions:
        if action.title != said and (action.commands or action.given):
            click.echo(f"  # {action.title}")
            said = action.title
        for command in action.commands:
            own = [f"{key}={shlex.quote(value)}" for key, value in command.env.items() if key not in shared]
            click.echo(f"  $ {' '.join([*own, _anybodys(shlex.join(command.argv))])}")
        if action.given:
            click.echo(f"  < {action.given}")
    for title, lines in (("files", files), ("containers", containers)):
        _heading(title, lines)
        for line in lines:
            click.echo(f"  {line}")


def _document(
    todo: Todo, commands: Sequence[tuple[str, Command]], files: Sequence[str], containers: Sequence[str]
) -> dict[str, object]:
    return {
        "runtime": todo.runtime,
        "profile": todo.profile,
        "notices": todo.notices,
        "commands": [
            {
                "title": title,
                "argv": [_anybodys(word) for word in command.argv],
                "env": dict(command.env),
                "container": _anybodys(command.container),
            }
            for title, command in commands
        ],
        "given": [{"title": action.title, "line": action.given} for action in todo.actions if action.given],
        "files": files,
        "containers": containers,
    }


def common(commands: Sequence[Command]) -> Mapping[str, str]:
    """The variables that all commands with variables have, with the same value; {} where they are too few to tell."""
    every = [command.env for command in commands if command.env]
    if len(every) < 2:
        return {}
    first, *others = every
    return {key: value for key, value in first.items() if all(env.get(key) == value for env in others)}


def _anybodys(text: str) -> str:
    """The text with a word where the number of this process stands: containers of one use are named by it."""
    return text.replace(f"-{os.getpid()}", "-PID")


def _once(lines: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(lines)


def _heading(text: str, lines: Sequence[object]) -> None:
    click.echo(f"\n{text}{'' if lines else ': none'}")
