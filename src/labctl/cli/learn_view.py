"""What stands on the screen of ``labctl learn``: the task, the last check, the keys; as lines of a given size."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text
from rich.theme import Theme

from labsched.printable import printable

KEYS = "c check  h hint  n next  l list  r reset  s solution  q quit"
LIST_KEYS = "up and down choose  enter begins  l back  q quit"
MORE = "space: more"
HERE = "> "  # the row of a list that is chosen
STYLES = {"passed:": "bold green", "not yet:": "bold yellow", "ok  ": "green", "NO  ": "red", "hint ": "cyan"}
PLAIN = Theme({"markdown.code": "bold", "markdown.item.bullet": "none", "markdown.item.number": "none"})


@dataclass(frozen=True)
class View:
    """What is to be seen."""

    title: str
    state: str
    progress: str
    task: str  # as Markdown, "" to leave its room to what is below
    files: str
    whole_task: str  # where the task can be read whole
    below: Sequence[str]  # of any length
    page: int = 0  # the part of ``below`` that is shown
    top: int = 0  # the first line of the task that is shown, where not all fit
    chosen: int | None = None  # the line of ``below`` that is chosen: it is a list


def view_lines(view: View, width: int, height: int) -> list[Text]:
    """Exactly ``height`` lines of less than ``width`` columns. The check goes before the task where both do not fit."""
    head = f"{view.title}  [{view.state}]" if view.state else view.title
    if width > len(head) + 20:
        head += f"{view.progress:>{max(2, width - 1 - len(head))}}"
    room = height - 4  # for all but the head with its empty line, and the keys with theirs
    below = _below(view, width)
    files = list(wrap_line(view.files, width))
    task = [*_markdown(view.task, width), Text(), *files] if view.task else []
    seen, hidden = _room_for_task(view, width, room, len(below))
    if hidden:
        top = min(view.top, hidden)
        where = f"... lines {top + 1} to {top + seen} of {seen + hidden}: up and down scroll ({view.whole_task})"
        task = [*task[top : top + seen], Text(where, "dim"), *files]
    left = max(1, room - len(task) - 1) if task else room
    if view.chosen is None:
        shown, more = _page(below, left, view.page)
    else:
        shown, more = below[max(0, min(view.chosen - left // 2, len(below) - left)) :][:left], False
    body = [*task, *([Text()] if task and below else []), *shown]
    body += [Text()] * (room - len(body))
    keys = Text(KEYS if view.chosen is None else LIST_KEYS, "dim") + Text(f"  {MORE}" if more else "", "dim")
    screen = [Text(head, "bold"), Text(), *body[:room], Text(), keys]
    for line in screen:
        line.truncate(width - 1, overflow="ellipsis")
    return screen


def lines_hidden(view: View, width: int, height: int) -> int:
    """How many lines of the task do not fit: as far as one can scroll."""
    return _room_for_task(view, width, height - 4, len(_below(view, width)))[1]


def _below(view: View, width: int) -> list[Text]:
    if view.chosen is None:
        return [part for line in view.below for part in wrap_line(line, width)]
    return [Text(line, "bold" if at == view.chosen else "") for at, line in enumerate(view.below)]


def _room_for_task(view: View, width: int, room: int, below: int) -> tuple[int, int]:
    """How many lines of the task are seen, and how many are not."""
    task, files = len(_markdown(view.task, width)) if view.task else 0, sum(1 for _ in wrap_line(view.files, width))
    keep = max(room - below - 1, room // 2) if below else room
    if task + 1 + files <= keep:
        return task, 0
    seen = max(0, keep - 1 - files)  # a line says which
    return seen, max(0, task - seen)


def _page(below: list[Text], room: int, page: int) -> tuple[list[Text], bool]:
    """A part of the lines that fits, and whether there are others; after the last part comes the first again."""
    if len(below) <= room:
        return below, False
    start = page % -(-len(below) // room) * room
    return below[start : start + room], True


def wrap_line(line: str, width: int) -> Iterator[Text]:
    """The parts of a line in its style. It may be code: what goes on is indented, so that it seems to begin no line."""
    style = next((style for mark, style in STYLES.items() if line.startswith(mark)), "")
    text = printable(line).lstrip()
    indent = line[: len(line) - len(text)]
    more = f"{indent}    "
    for part in textwrap.wrap(text, width - 1, initial_indent=indent, subsequent_indent=more, break_on_hyphens=False):
        yield Text(part, style)
    if not text:
        yield Text()


def _markdown(text: str, width: int) -> list[Text]:
    """A Markdown text in the width of the screen, without an empty line before it."""
    console = Console(width=width - 1, theme=PLAIN)
    lines = [Text.assemble(*((p.text, p.style or "") for p in line)) for line in console.render_lines(Markdown(text))]
    return list(itertools.dropwhile(lambda line: not line.plain.strip(), lines))
