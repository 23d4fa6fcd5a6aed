"""The names that a shell completes: stacks, labs, settings, models, exercises (docs/guide/completion.md).

They are read at each Tab: nothing that computes or asks a server is imported for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from labkit.errors import LabError

if TYPE_CHECKING:
    from labctl.catalog import Catalog
    from labctl.lab import Lab

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completes(names: Callable[[Catalog, click.Context], Iterable[tuple[str, str]]]) -> Complete:
    """A parameter's ``shell_complete``: those of ``names``, each with its help, that begin with the word so far."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from labctl.catalog import load_catalog
        from labctl.workspace import Workspace

        with contextlib.suppress(LabError, OSError):  # an error would stand in the middle of the line
            catalog = load_catalog(Workspace.find())
            found = [item for item in names(catalog, ctx) if item[0].startswith(incomplete)]
            return [CompletionItem(name, help=help) for name, help in dict(found).items()]
        return []

    return complete


def _labs(catalog: Catalog, ctx: click.Context) -> Iterable[tuple[str, str]]:
    return ((lab.short, lab.title) for lab in catalog.every)


def _stacks(catalog: Catalog, ctx: click.Context) -> Iterable[tuple[str, str]]:
    return ((name, stack.title) for lab in catalog.every for name, stack in lab.stacks.items())


def _labs_and_stacks(catalog: Catalog, ctx: click.Context) -> Iterable[tuple[str, str]]:
    return (*_labs(catalog, ctx), *_stacks(catalog, ctx))


def _named(catalog: Catalog, ctx: click.Context) -> Iterable[tuple[Lab, str]]:
    """Each lab and stack that the command line names so far; all of them if it names none."""
    words = {*ctx.args, *(ctx.params.get(name) for name in ("stack", "lab", "what"))}  # args: before an open option
    every = [(lab, stack) for lab in catalog.every for stack in lab.stacks]
    return [(lab, stack) for lab, stack in every if words & {stack, lab.short, lab.number, lab.folder}] or every


def _settings(catalog: Catalog, ctx: click.Context) -> Iterable[tuple[str, str]]:
    return ((f"{key}=", item.help) for lab, _ in _named(catalog, ctx) for key, item in lab.declared.items())


def _models(catalog: Catalog, ctx: click.Context) -> Iterable[tuple[str, str]]:
    return ((model, stack) for lab, stack in _named(catalog, ctx) for model in lab.stacks[stack].models)


def _exercises(catalog: Catalog, ctx: click.Context) -> Iterable[tuple[str, str]]:
    from labctl.learn.exercise import find_exercises
    from labctl.workspace import Workspace

    found = find_exercises(Workspace.find(), catalog, leave_out=lambda problem: None)
    return ((exercise.id, exercise.title) for exercise in found)


labs, stacks, labs_and_stacks = map(_completes, (_labs, _stacks, _labs_and_stacks))
settings, models, exercises = map(_completes, (_settings, _models, _exercises))


def stacks_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return stacks(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]
