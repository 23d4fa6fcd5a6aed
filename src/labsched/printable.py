"""Strangers' texts (prompts, ids, answers, file names) on a terminal: shown as text, never obeyed."""

from __future__ import annotations

import io
import sys

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_C1 = dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}")  # a terminal may take them for escape codes too
_TURNS = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\N{REPLACEMENT CHARACTER}")  # of direction
_LONE = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")
_TABLE = _PICTURES | _C1 | _TURNS | _LONE


def printable(text: str) -> str:
    """The text with a visible sign in the place of each character that moves the cursor or changes the terminal.

    One sign each, so that the text keeps its length; line breaks and tabs stay.
    """
    return text.translate(_TABLE)


def allow_any_text() -> None:
    """Let the standard output and error take texts that the terminal's encoding lacks: none may end a program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
