"""Triton's log: one line per message, the message quoted and escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

LINE = re.compile(r"^(?P<head>[IWEF]\d{4} \d\d:\d\d:\S+ \d+ [^\]]*\]) \"(?P<message>.*)\"$")
ESCAPED = re.compile(r"\\(?P<what>[nt\"\\/])")
PLAIN = {"n": "\n", "t": "\t"}


def message(line: str) -> str:
    """The message of a line, its own line breaks restored; the line itself where it is not Triton's.

    Other escapes stay: what came from a client must not move anybody's cursor.
    """
    match = LINE.match(line)
    return _plain(match["message"]) if match else line


def readable(lines: Iterable[str]) -> Iterator[str]:
    """The log for people: a traceback takes as many lines as it has."""
    for line in lines:
        match = LINE.match(line)
        yield f"{match['head']} {_plain(match['message'])}" if match and "\\n" in line else line


def _plain(text: str) -> str:
    return ESCAPED.sub(lambda match: PLAIN.get(match["what"], match["what"]), text)
