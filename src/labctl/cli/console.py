"""How a job's progress and an error look: calm, aligned, and readable without colour or a terminal."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from labctl.listener import Listener
from labkit.errors import LabError
from labkit.tables import HANGING, can_redraw, columns, wrap_text
from labsched.printable import printable

WIDTH = 46  # of a step's title
LEAST = 24  # of a title, where the progress is long
_working: list[Console] = []  # the one whose line stands unfinished on the terminal


class Console(Listener):
    """The listener of the command line. Everything goes to stderr: stdout is for results."""

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self.live = can_redraw(sys.stderr)
        self._title = ""
        self._began = 0.0
        self._shown = ""
        self._drawn = 0.0

    def step(self, text: str) -> None:
        self.settle()
        _working[:] = [self]
        self._title, self._began, self._shown = printable(text), time.monotonic(), ""
        self._draw("")
        if not self.live:
            click.echo(f"  ..  {self._title}", err=True)

    def progress(self, text: str) -> None:
        now, text = time.monotonic(), printable(text)
        if text == self._shown and now - self._drawn < 0.5:
            return
        if self.live:
            self._draw(text)
        elif text != self._shown and now - self._drawn > 5:  # a log wants few lines
            click.echo(f"      {text}", err=True)
            self._drawn = now
        self._shown = text

    def done(self, text: str = "", timed: bool = True) -> None:
        took = time.monotonic() - self._began
        seconds = f"  {took:.1f} s" if timed and took >= 0.1 else ""
        self._clear()
        line = f"  ok  {self._title:<{WIDTH}}  {printable(text)}{seconds}".rstrip()
        say(line, err=True, hanging=" " * 4, word="ok", fg="green")
        self._title = ""

    def note(self, text: str) -> None:
        title = self._title
        self._clear()
        say(f"  --  {printable(text)}", err=True, hanging=" " * 4)
        if title:
            self._draw(self._shown)

    def command(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        if self.verbose:
            self._clear()
            variables = (f"{key}={shlex.quote(value)}" for key, value in (env or {}).items())
            line = " ".join(["  $", *variables, shlex.join(argv)])
            click.echo(click.style(printable(line), dim=True), err=True)

    def settle(self) -> None:
        """End a step that will not be finished (an error follows), so that its line stays readable."""
        if self._title and self.live:
            self._clear()
            click.echo(self._line(self._shown), err=True)
        self._title = ""

    def _draw(self, text: str) -> None:
        if not (self.live and self._title):
            return
        elapsed = time.monotonic() - self._began
        clock = f"  {elapsed:.0f} s" if elapsed >= 2 else ""
        self._clear()
        click.echo(self._line(text, clock), nl=False, err=True)
        self._drawn = time.monotonic()

    def _line(self, text: str, clock: str = "") -> str:
        """A line that fits the terminal: one that wraps cannot be drawn over."""
        room = shutil.get_terminal_size().columns - len(clock) - 1
        left = max(LEAST, room - len(text) - 8)  # for the title, beside a progress text
        title = f"{self._title:<{min(WIDTH, left)}}"
        if text and len(title) > left:
            title = title[: left - 1] + "…"
        return f"  ..  {title}  {text}".rstrip()[:room] + clock

    def _clear(self) -> None:
        if self.live:
            click.echo("\r\x1b[2K", nl=False, err=True)


def show_error(error: LabError) -> None:
    """The one place where an error is shown: what happened, why, the evidence, the next command to type."""
    for console in _working:
        console.settle()
    say(f"error: {printable(error.what)}", err=True, word="error:", fg="red", bold=True)
    if error.why:
        say(f"  {printable(error.why)}", err=True, hanging="")
    for line in error.details:
        say(f"    {printable(line)}", err=True)
    if error.remedy:
        say(f"try:   {printable(error.remedy)}", err=True, hanging=" " * 7, word="try:", fg="yellow", bold=True)


def say(text: str, err: bool = False, hanging: str = HANGING, word: str = "", **style: Any) -> None:
    """Print; on a terminal lines break between words. ``word`` is the first one, if it has a style of its own."""
    text = wrap_text(text, columns(sys.stderr if err else sys.stdout), hanging)
    click.echo(text.replace(word, click.style(word, **style), 1) if word else text, err=err)


def say_folder(folder: Path, edited: Sequence[str], took: str = "") -> None:
    """What stands below each result: the files that were not as shipped, and where the rest is."""
    if edited:
        say(printable(f"\nedited: {', '.join(edited)}"))
    here = Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    click.echo(f"\nresults in {shown}{took}")


def is_terminal() -> bool:
    """Whether a person can type keys and see what is drawn: both input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
