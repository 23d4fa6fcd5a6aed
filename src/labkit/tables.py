"""Plain text in columns: tables, readable in a log as on a terminal, and sentences that break between words."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from labkit.printable import printable

HANGING = "  "  # before what a too long line goes on with, beside its own indent


def columns(stream: TextIO) -> int | None:
    """The width of the terminal that a stream writes to, or COLUMNS where that is set; None in a file or a pipe."""
    return shutil.get_terminal_size().columns if stream.isatty() or os.environ.get("COLUMNS") else None


def fitted(text: str, width: int | None, hanging: str = HANGING) -> str:
    """The text with each line that is wider than ``width`` broken between words; as it is without a width."""
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width, hanging))


def _broken(line: str, width: int, hanging: str = "") -> list[str]:
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.lstrip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    ) or [""]


def table(
    rows: Sequence[Sequence[object]], header: Sequence[str], right: Sequence[int] = (), width: int | None = None
) -> str:
    """``right`` names the columns that are aligned to the right (numbers).

    Where the table would be wider than ``width`` (default: the terminal), the header takes a line for each word, and
    then the texts of a row, between words; in a file or a pipe a row stays one line.
    """
    text = [[printable(str(cell)) for cell in row] for row in rows]
    room = shutil.get_terminal_size().columns if width is None else width
    head = [[title] for title in header]
    gaps = 2 * (len(header) - 1)
    if sum(_widths(head, text)) + gaps > room:
        head = [title.split() or [""] for title in header]
    widths = _widths(head, text)
    if width is not None or columns(sys.stdout):
        widths = _narrowed(widths, _widths(head, text, words=True), room - gaps, right)
    depth = max(map(len, head))
    above = [[column[line - depth] if line >= depth - len(column) else "" for column in head] for line in range(depth)]
    below = [line for row in text for line in _lines(row, widths)]
    lines = []
    for row in (*above, ["-" * width for width in widths], *below):
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _widths(head: Sequence[Sequence[str]], text: Sequence[Sequence[str]], words: bool = False) -> list[int]:
    """The width of each column; with ``words`` the least that it can have."""
    cells = [[row[i] for row in text] for i in range(len(head))]
    if words:
        cells = [[word for cell in column for word in cell.split() or [""]] for column in cells]
    return [max(map(len, (*titles, *column))) for titles, column in zip(head, cells, strict=True)]


def _narrowed(widths: list[int], least: list[int], room: int, right: Sequence[int]) -> list[int]:
    """The widths with which a table fits, as far as its words let it; columns of numbers keep theirs."""
    widths = list(widths)
    while sum(widths) > room:
        loose = [i for i, wide in enumerate(widths) if wide > least[i] and i not in right]
        if not loose:
            break
        widths[max(loose, key=lambda i: widths[i])] -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """A row of a table: as many lines as its longest text takes."""
    cells = [_broken(cell, wide) for cell, wide in zip(row, widths, strict=True)]
    depth = max(map(len, cells))
    return [[cell[line] if line < len(cell) else "" for cell in cells] for line in range(depth)]


def markdown(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])
