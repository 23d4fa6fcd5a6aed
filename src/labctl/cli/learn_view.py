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

from labkit.printable import printable

KEYS = "c check  h hint  n next  r reset  s solution  q quit"
MORE = "space: more"
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


def view_lines(view: View, width: int, height: int) -> list[Text]:
    """Exactly ``height`` lines of less than ``width`` columns. The check goes before the task where both do not fit."""
    head = f"{view.title}  [{view.state}]"
    if width > len(head) + 20:
        head += f"{view.progress:>{max(2, width - 1 - len(head))}}"
    below = [part for line in view.below for part in wrap_line(line, width)]
    room = height - 4  # for all but the head with its empty line, and the keys with theirs
    files = list(wrap_line(view.files, width))
    task = [*_markdown(view.task, width), Text(), *files] if view.task else []
    keep = max(room - len(below) - 1, room // 2) if below else room
    if len(task) > keep:
        rest = [Text(f"... ({view.whole_task} has the rest)"), *files]
        task = [*task[: max(0, keep - len(rest))], *rest]
    shown, more = _page(below, max(1, room - len(task) - 1), view.page)
    body = [*task, *([Text()] if task and below else []), *shown]
    body += [Text()] * (room - len(body))
    keys = Text(f"{KEYS}  {MORE}" if more else KEYS, "dim")
    screen = [Text(head, "bold"), Text(), *body[:room], Text(), keys]
    for line in screen:
        line.truncate(width - 1, overflow="ellipsis")
    return screen


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
