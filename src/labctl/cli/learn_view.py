"""What stands on the screen of ``labctl learn``: the task, the last check, the keys; as lines of a given size."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labctl.learn.judge import Outcome
from labkit.printable import printable

KEYS = "c check  h hint  n next  r reset  s solution  q quit"
MORE = "space: more"
ITEM = re.compile(r"\s*([-*]|\d+\.)\s+")
BY_ITSELF = re.compile(r"\s|[-*|>#]|\d+\.|```")  # begins a line of Markdown that is not joined with its neighbours
STYLES = (("passed:", "1;32"), ("not yet:", "1;33"), ("ok  ", "32"), ("NO  ", "31"), ("hint ", "36"))


@dataclass(frozen=True)
class View:
    """What is to be seen.

    Attributes:
        task: as Markdown, "" to leave its room to what is below; ``whole_task`` is where it can be read whole.
        below: lines of any length; ``page`` says which part of them is shown.
    """

    title: str
    state: str
    progress: str
    task: str
    files: str
    whole_task: str
    below: Sequence[str]
    page: int = 0


def lines(view: View, width: int, height: int, color: bool) -> list[str]:
    """Exactly ``height`` lines of at most ``width`` columns. The check goes before the task where both do not fit.

    Args:
        color: with the terminal's colours.
    """
    head = f"{view.title}  [{view.state}]"
    head = _cut(f"{head}{view.progress:>{max(2, width - 1 - len(head))}}" if width > len(head) + 20 else head, width)
    below = [part for line in view.below for part in wrap_line(line, width)]
    room = height - 4  # for all but the head with its empty line, and the keys with theirs
    files = _wrap(view.files, width)
    task = [*_reflow(view.task, width), "", *files] if view.task else []
    keep = max(room - len(below) - 1, room // 2) if below else room
    if len(task) > keep:
        rest = [_cut(f"... ({view.whole_task} has the rest)", width), *files]
        task = [*task[: max(0, keep - len(rest))], *rest]
    shown, more = _page(below, max(1, room - len(task) - 1), view.page)
    body = [*task, *([""] if task and below else []), *(_style(text, style, color) for text, style in shown)]
    body += [""] * (room - len(body))
    keys = f"{KEYS}  {MORE}" if more else KEYS
    return [_style(head, "1", color), "", *body[:room], "", _style(_cut(keys, width), "2", color)]


def _page(below: list[tuple[str, str]], room: int, page: int) -> tuple[list[tuple[str, str]], bool]:
    """A part of the lines that fits, and whether there are others; after the last part comes the first again."""
    if len(below) <= room:
        return below, False
    start = page % -(-len(below) // room) * room
    return below[start : start + room], True


def rows_of(outcome: Outcome) -> list[str]:
    """What a check found: the sentence first, which must be seen where there is no room for everything."""
    return [f"{'passed' if outcome.passed else 'not yet'}: {outcome.sentence}", "", *expectations_of(outcome)]


def expectations_of(outcome: Outcome) -> list[str]:
    """A row for each expectation of a check."""
    rows = []
    for check in outcome.checks:
        first, *more = check.measured.splitlines() or [""]
        rows.append(f"{'ok' if check.ok else 'NO'}  {check.name}: expected {check.expected}, measured {first}")
        rows += [f"    {line}" for line in more]
    return rows


def wrap_line(line: str, width: int) -> Iterator[tuple[str, str]]:
    """Each part of a line, and the style of the whole. It may be code: what goes on is seen not to begin a line."""
    style = next((style for mark, style in STYLES if line.startswith(mark)), "")
    line = printable(line)
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    for part in _wrap(text, width, initial_indent=indent, subsequent_indent=f"{indent}    ") or [""]:
        yield part, style


def _wrap(text: str, width: int, **indents: str) -> list[str]:
    """Lines of less than ``width`` columns; only a word that is longer than a line is broken."""
    return textwrap.wrap(text, width - 1, break_on_hyphens=False, **indents)  # type: ignore[arg-type]


def _reflow(text: str, width: int) -> list[str]:
    """Markdown's paragraphs and items in the width of the screen; tables and code line by line."""
    result: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        for block in _blocks(paragraph.splitlines()):
            item = ITEM.match(block)
            indent = " " * len(item[0]) if item else ""
            result += _wrap(block, width, subsequent_indent=indent) or [""]
        result.append("")
    return result[:-1]


def _blocks(rows: Sequence[str]) -> list[str]:
    """The rows of a paragraph as one; each item of a list as one; rows of tables and code as they are."""
    blocks: list[str] = []
    for row in rows:
        goes_on = bool(blocks) and not ITEM.match(row)
        if goes_on and ITEM.match(blocks[-1]):
            blocks[-1] += f" {row.strip()}"
        elif goes_on and not BY_ITSELF.match(row) and not BY_ITSELF.match(blocks[-1]):
            blocks[-1] += f" {row}"
        else:
            blocks.append(row)
    return blocks


def _cut(text: str, width: int) -> str:
    return text if len(text) < width else text[: max(0, width - 4)] + "..."


def _style(text: str, style: str, color: bool) -> str:
    return f"\033[{style}m{text}\033[0m" if color and style and text else text
