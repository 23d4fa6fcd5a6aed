"""A terminal as one screen of our own: single keys, lines drawn in place, and as it was before when it ends."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

ARROWS = {b"\033[A": "up", b"\033[B": "down", b"\033OA": "up", b"\033OB": "down"}  # also of an application's keypad
Lines = Callable[[int, int], "Sequence[str | Text]"]  # of a width and a height; each line must fit


@contextlib.contextmanager
def fullscreen() -> Iterator[Callable[[Lines], None]]:
    """A screen and single keys for the time of a block; yields what draws. The terminal is as it was afterwards."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console, before = Console(), termios.tcgetattr(sys.stdin)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def draw(lines: Lines) -> None:
        shown = [Text(line) if isinstance(line, str) else line for line in lines(*console.size)]
        live.update(Group(*shown), refresh=True)

    try:
        tty.setcbreak(sys.stdin)
        with live:
            yield draw
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def read_key(seconds: float) -> str:
    """The key that is pressed within that time, in lower case, "up" or "down"; "q" where the terminal has gone.

    "" for none, and for what else sends more than a letter (a paste).
    """
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    data = os.read(sys.stdin.fileno(), 64)
    if data in ARROWS:
        return ARROWS[data]
    return "" if data.startswith(b"\033") or len(data) > 1 else data.decode(errors="replace").lower() or "q"
