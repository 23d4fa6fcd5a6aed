"""Plain tables: columns aligned, two spaces between them, readable in a log as on a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[object]], header: Sequence[str], right: Sequence[int] = ()) -> str:
    """``right`` names the columns that are aligned to the right (numbers)."""
    text = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in text) for i in range(len(header))]
    lines = []
    for row in text:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def markdown(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])
