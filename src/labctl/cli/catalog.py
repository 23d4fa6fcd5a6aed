"""labctl list."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from typing import Any

import click

from labctl.catalog import load_catalog
from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.lab import PROFILES, Lab, Setting
from labctl.settings import format_setting
from labctl.workspace import Workspace
from labkit.tables import format_table

INDENT = "      "


@click.command("list")
@click.argument("word", required=False, metavar="[LAB|STACK]", shell_complete=completion.labs_and_stacks)
@opt.as_json
def list_command(word: str | None, json_output: bool) -> None:
    """List the labs; with the name of one, or of a stack, its settings."""
    catalog = load_catalog(Workspace.find())
    chosen = catalog.lab(word) if word else None
    if json_output:
        document = _document(chosen) if chosen else [_document(lab) for lab in catalog.labs]
        click.echo(json.dumps(document, indent=2))
    elif chosen:
        say(_settings(chosen), hanging="")
    else:
        rows = [(lab.number, lab.short, ", ".join(lab.stacks), lab.title) for lab in catalog.labs]
        width = shutil.get_terminal_size().columns  # also in a pipe
        click.echo(format_table(rows, ("lab", "name", "stacks", "title"), width=width))
        click.echo("\nlabctl list LAB shows a lab's settings")


def _document(lab: Lab) -> dict[str, Any]:
    return {
        "number": lab.number,
        "name": lab.folder[3:],
        "short": lab.short,
        "title": lab.title,
        "summary": lab.summary,
        "settings": {key: asdict(setting) for key, setting in lab.declared.items()},
        "stacks": {stack.name: {"title": stack.title, "models": stack.models} for stack in lab.serves},
    }


def _settings(lab: Lab) -> str:
    lines = [f"{lab.number} {lab.short}: {lab.title}"]
    lines += [f"{INDENT}stack {name}: {stack.title}" for name, stack in lab.stacks.items()]
    for of_run, title in ((False, "What is served (--set key=value)"), (True, "What labctl run does with it")):
        chosen = {key: setting for key, setting in lab.declared.items() if setting.of_run == of_run}
        lines += ["", title] if chosen else []
        for key, setting in chosen.items():
            lines += [f"  {key}", INDENT + setting.help, INDENT + _values(setting)]
    return "\n".join(lines)


def _values(setting: Setting) -> str:
    """What a setting takes, its defaults, and the other settings with which it means anything."""
    defaults = [format_setting(setting.default[profile]) or "(empty)" for profile in PROFILES]
    default = defaults[0] if len(set(defaults)) == 1 else f"{defaults[0]} (gpu: {defaults[1]})"
    text = f"{setting.describe()}; default {default}"
    conditions = [f"{key}={' or '.join(map(format_setting, values))}" for key, values in setting.when.items()]
    return f"{text}; only with {' and '.join(conditions)}" if conditions else text
