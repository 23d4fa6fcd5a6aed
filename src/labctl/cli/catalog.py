"""labctl list."""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import Any

import click

from labctl.cli import options as opt
from labctl.manifest.catalog import load
from labctl.manifest.schema import PROFILES, Lab
from labctl.manifest.settings import Setting, as_text
from labctl.workspace import Workspace
from labkit.tables import fitted, table

INDENT = "      "


@click.command("list")
@click.argument("lab", required=False, metavar="[LAB|STACK]")
@opt.as_json
def list_command(lab: str | None, json_output: bool) -> None:
    """List the labs; with the name of one, or of a stack, its settings."""
    catalog = load(Workspace.find())
    chosen = catalog.lab(lab) if lab else None
    if json_output:
        shown = [_object(one) for one in ([chosen] if chosen else catalog.labs)]
        click.echo(json.dumps(shown[0] if chosen else shown, indent=2))
    elif chosen:
        click.echo(_settings(chosen))
    else:
        click.echo(_labs(catalog.labs))


def _object(lab: Lab) -> dict[str, Any]:
    return lab.model_dump(by_alias=True, mode="json")


def _labs(labs: tuple[Lab, ...]) -> str:
    """One row a lab; on a narrow terminal its texts break between words."""
    rows = [(lab.number, lab.short, ", ".join(lab.stacks), lab.title) for lab in labs]
    width = shutil.get_terminal_size().columns
    return table(rows, ("lab", "name", "stacks", "title"), width=width) + "\n\nlabctl list LAB shows a lab's settings"


def _settings(lab: Lab) -> str:
    width = shutil.get_terminal_size().columns
    lines = [fitted(f"{lab.number} {lab.short}: {lab.title}", width)]
    for name, stack in lab.stacks.items():
        lines += _wrap(f"stack {name}: {stack.title}", width)
    for scope, title in (("stack", "What is served (--set key=value)"), ("run", "What labctl run does with it")):
        chosen = {key: setting for key, setting in lab.settings.items() if setting.scope == scope}
        lines += ["", title] if chosen else []
        for key, setting in chosen.items():
            lines.append(f"  {key}")
            for text in (setting.help, _values(setting)):
                lines += _wrap(text, width)
    return "\n".join(lines)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)


def _values(setting: Setting) -> str:
    """What a setting takes, its defaults, and the other settings with which it means anything."""
    defaults = [as_text(setting.default_for(profile)) or "(empty)" for profile in PROFILES]
    default = defaults[0] if len(set(defaults)) == 1 else f"{defaults[0]} (gpu: {defaults[1]})"
    only = " and ".join(f"{key}={' or '.join(map(as_text, good))}" for key, good in setting.when.items())
    return f"{setting.describe()}; default {default}" + (f"; only with {only}" if only else "")
