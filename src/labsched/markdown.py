"""Tables in Markdown, aligned so that they also read well as they are."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Write a table; texts are as they are given.

    >>> print(markdown([("no slot", "134.0"), ("TTFT", "152.7")], ("ms", "p50")))
    | ms      | p50   |
    |---------|-------|
    | no slot | 134.0 |
    | TTFT    | 152.7 |
    """
    cells = [[str(cell).replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in cells]
    return "\n".join([lines[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *lines[1:]])
