"""The entry point: finds the command, shows every error in one place, and gives each end its exit status.

0 done, 1 failed (with a remedy), 2 wrong usage, 130 interrupted, 143 terminated. A command's module is imported only
when that command is used: ``labctl --help`` answers at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click

from labctl.cli.commands import COMMANDS, GROUPS
from labctl.cli.console import show_error
from labkit import disk, proxies
from labkit.errors import LabError
from labsched.printable import allow_any_text, printable

MOST_WORDS = 300  # of what a package says where it cannot be imported: numpy's advice takes a screen


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception: only clean-up code may stand in its way."""


class _Text(click.types.StringParamType):
    """A word that is UTF-8: no model, server or file of ours takes another one. Paths have a type of their own."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"'{printable(text)}' is not UTF-8", param, ctx)
        return text


TEXT = _Text()


class _LazyGroup(click.Group):
    """Knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"labctl.cli.{COMMANDS[name].module}")
        command: click.Command = getattr(module, f"{name}_command")
        examples = COMMANDS[name].examples
        command.epilog = _show_examples(examples)
        _require_text(command)
        for word, part in command.commands.items() if isinstance(command, click.Group) else ():
            part.epilog = _show_examples([e for e in examples if e.startswith(f"{name} {word}")])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{longest}}", listed.summary) for name, listed in group.items()])


def _require_text(command: click.Command) -> None:
    """Give the command, and each that it has, ``_Text`` for plain words."""
    for parameter in command.params:
        if parameter.type is click.STRING:
            parameter.type = TEXT
    for part in command.commands.values() if isinstance(command, click.Group) else ():
        _require_text(part)


def _show_examples(examples: Sequence[str]) -> str | None:
    lines = ("\b", "Examples:", *(f"  labctl {example}" for example in examples))  # \b: click keeps lines as they are
    return "\n".join(lines) if examples else None


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="triton-serving-labs", prog_name="labctl")
def cli() -> None:
    """Hands-on labs for LLM serving with NVIDIA Triton.

    Begin with `labctl run iterative --quick`, then `labctl learn`.
    """


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the clean-up must end
    raise Terminated


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    proxies.spare_loopback()
    allow_any_text()
    try:
        code = cli.main(argv, prog_name="labctl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LabError as error:
        show_error(error)
        return 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except Terminated:
        click.echo("terminated", err=True)
        return 143
    except OSError as error:
        if not disk.is_disk_fault(error) and not isinstance(error.filename, str | bytes):
            raise
        show_error(disk.describe_os_error(error))
        return 1
    except ImportError as error:
        show_error(_not_importable(error))
        return 1
    except RecursionError as error:
        if Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent.name != "json":
            raise
        what, remedy = "a file or an answer is nested too deeply to be read", "look into the files that you named"
        show_error(LabError(what, str(error), remedy, code="nested-too-deeply"))
        return 1


def _not_importable(error: ImportError) -> LabError:
    """A package that another environment's hides, or that is not there."""
    named = (error.name or "").partition(".")[0]
    why = " ".join(str(error).split())
    words = f"{why[:MOST_WORDS]}..." if len(why) > MOST_WORDS else why
    if elsewhere := os.environ.get("PYTHONPATH"):
        remedy = f"unset PYTHONPATH, which is {elsewhere}: Python looks there first"
        return LabError(f"labctl cannot import {named or 'a package'}", words, remedy, code="import-failed")
    return LabError(
        f"labctl cannot import {named or 'a package'}",
        words,
        "make setup, or install labctl again",
        code="import-failed",
    )


def entry() -> None:
    os.environ.pop("MPLBACKEND", None)  # a notebook's kernel names one that only the kernel has
    sys.exit(main())
