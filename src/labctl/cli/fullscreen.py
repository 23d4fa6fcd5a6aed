"""A terminal as one screen of our own: single keys, lines drawn in place, and as it was before when it ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence

HOME, CLEAR_LINE, CLEAR_REST = "\033[H", "\033[K", "\033[J"
ESCAPE = b"\033"
OWN_SCREEN, BACK = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"


@contextlib.contextmanager
def fullscreen() -> Iterator[None]:
    """Single keys and a screen of our own, for the time of a block; however it ends, the terminal is as it was."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write(OWN_SCREEN)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(BACK)
        sys.stdout.flush()


def key(seconds: float) -> str:
    """The key that is pressed within that time, in lower case; "q" where the terminal has gone.

    "" for none, and for those that send more than a letter (arrows, a paste).
    """
    if select.select([sys.stdin], [], [], seconds)[0]:
        data = os.read(sys.stdin.fileno(), 64)
        if data.startswith(ESCAPE) or len(data) > 1:
            return ""
        return data.decode(errors="replace").lower() or "q"
    return ""


def draw(lines: Callable[[int, int], Sequence[str]]) -> None:
    """Draw what ``lines(width, height)`` gives; each line must fit."""
    width, height = shutil.get_terminal_size()
    shown = list(lines(width, height))[:height]
    text = "\r\n".join(f"{line}{CLEAR_LINE}" for line in shown)
    sys.stdout.write(f"{HOME}{text}{CLEAR_REST}")
    sys.stdout.flush()
