"""Plain text in columns: tables, readable in a log as on a terminal, and sentences that break between words."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from labsched.printable import printable

HANGING = "  "  # before what a too long line goes on with, beside its own indent
RULE = "    \n    \n -  \n" + "    \n" * 5  # rich's drawing of a table: nothing but a rule below the header
WIDEST = 10_000  # columns of a table in a file or a pipe


def columns(stream: TextIO) -> int | None:
    """The width of the terminal that a stream writes to, or COLUMNS where that is set; None in a file or a pipe."""
    return shutil.get_terminal_size().columns if stream.isatty() or os.environ.get("COLUMNS") else None


def can_redraw(stream: TextIO) -> bool:
    """Whether a line that was written there can be written over: a terminal that moves its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wrap_text(text: str, width: int | None, hanging: str = HANGING) -> str:
    """The text with each line that is wider than ``width`` broken between words; as it is without a width."""
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width, hanging))


def _broken(line: str, width: int, hanging: str) -> list[str]:
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


def format_table(
    rows: Sequence[Sequence[object]], header: Sequence[str], right: Sequence[int] = (), width: int | None = None
) -> str:
    """``right`` names the columns that are aligned to the right (numbers).

    Where the table would be wider than ``width`` (default: the terminal), the header takes a line for each word, and
    then the texts of a row, between words; a table that has no room even so becomes a block of lines for each row. In
    a file or a pipe a row stays one line.
    """
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(str(cell)) for cell in row] for row in rows]
    width, gaps = width or columns(sys.stdout) or WIDEST, 2 * (len(header) - 1)
    each_column = list(zip(header, *cells, strict=True))
    in_words = [any(" " in text for text in texts) for _, *texts in each_column]
    if sum(_least(column, words) for column, words in zip(each_column, in_words, strict=True)) + gaps > width:
        return "\n\n".join(_block(header, row) for row in cells)
    fits = sum(max(map(len, column)) for column in each_column) + gaps <= width
    titles = [[title] if fits or words else title.split() for title, words in zip(header, in_words, strict=True)]
    deep = max(map(len, titles))
    grid = Table(box=Box(RULE, ascii=True), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, (title, words) in enumerate(zip(titles, in_words, strict=True)):
        above = Text("\n".join([*[""] * (deep - len(title)), *title]))
        grid.add_column(above, justify="right" if number in right else "left", no_wrap=not words, overflow="fold")
    for row in cells:
        grid.add_row(*map(Text, row))
    # Not a terminal, whatever FORCE_COLOR says: a notebook sets it, and a dumb terminal would have 80 columns.
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as drawn:
        console.print(grid)
    lines = [line.rstrip() for line in drawn.get().rstrip("\n").split("\n")]
    # rich's rule also stands below the gap between two columns.
    return "\n".join(line if line.strip("- ") else line.replace("- -", "  -") for line in lines)


def _block(header: Sequence[str], row: Sequence[str]) -> str:
    """A row as lines, each with its title."""
    widest = max(map(len, header))
    return "\n".join(f"{title:<{widest}}  {cell}" for title, cell in zip(header, row, strict=True))


def _least(column: Sequence[str], words: bool) -> int:
    """The width that a column needs: its title's longest word, and its whole texts unless they are ``words``."""
    return max(map(len, (*column[0].split(), *([] if words else column[1:]), "")))
