"""Plain tables: columns aligned, two spaces between them, readable in a log as on a terminal."""

from __future__ import annotations

import shutil
from collections.abc import Sequence


def table(
    rows: Sequence[Sequence[object]], header: Sequence[str], right: Sequence[int] = (), width: int | None = None
) -> str:
    """``right`` names the columns that are aligned to the right (numbers).

    Where the table would be wider than ``width`` (default: the terminal), the header takes a line for each word.
    """
    text = [[str(cell) for cell in row] for row in rows]
    room = shutil.get_terminal_size().columns if width is None else width
    head = [[title] for title in header]
    if sum(_widths(head, text)) + 2 * (len(header) - 1) > room:
        head = [title.split() or [""] for title in header]
    widths = _widths(head, text)
    depth = max(map(len, head))
    above = [[column[line - depth] if line >= depth - len(column) else "" for column in head] for line in range(depth)]
    lines = []
    for row in (*above, ["-" * width for width in widths], *text):
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _widths(head: Sequence[Sequence[str]], text: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(cell) for cell in (*column, *(row[i] for row in text))) for i, column in enumerate(head)]


def markdown(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])
