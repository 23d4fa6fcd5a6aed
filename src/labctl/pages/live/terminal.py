"""The live view as lines of text, for 80 columns by 24 rows and without colour; whoever prints them may colour them.

A request has a letter for as long as it is shown: capital in a step that computes its prompt (prefill), small in one
that adds a token (decode), "." where a seat was empty. Time goes to the right, one column a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

from labctl.pages.live.state import ModelView, State, StepMarks
from labkit.printable import printable

KEYS = "p pause or run  s step  t ten steps  r run  + slower  - faster  m model  q quit"
KNOWN = 2000  # requests whose letters are remembered
LEAST_STRIP = 16  # columns
NAME = 9
STRIP = 3 + 1 + NAME + 1  # the column in which a seat's strip begins


@dataclass
class Letters:
    """Which letter each request has, by model and name; given in turn, so that those beside each other differ."""

    _of: dict[tuple[str, str], str] = field(default_factory=dict)
    _count: int = 0

    def of(self, model: str, name: str) -> str:
        """The small letter of a request."""
        if (model, name) not in self._of:
            self._of[model, name] = ascii_lowercase[self._count % len(ascii_lowercase)]
            self._count += 1
            if len(self._of) > KNOWN:
                self._of.pop(next(iter(self._of)))
        return self._of[model, name]


@dataclass
class Screen:
    """What stands on the screen beside the state itself.

    Attributes:
        chosen: the model that the keys mean; "" for all.
        note: what the last key did.
        warning: stands before the note.
        now: on the clock of the log; None: the time of each model's last line.
    """

    title: str
    chosen: str = ""
    note: str = ""
    warning: str = ""
    now: float | None = None
    letters: Letters = field(default_factory=Letters)

    def lines(self, state: State, width: int, height: int) -> list[str]:
        """The whole screen: exactly ``height`` lines of at most ``width`` columns."""
        views = [view for view in state.models.values() if self.chosen in ("", view.model)]
        modes = sorted({view.mode for view in views} or {"run"})
        head = f"{self.title}  {'/'.join(modes)}" + (f"  keys mean {self.chosen}" if self.chosen else "")
        body: list[str] = []
        room = height - 4
        if not views:
            body = ["", "no step yet: send a request, or wait for one"]
        # Those with several seats are what there is to see; of the others a line each is enough.
        seated = [view for view in views if view.slots > 1 or len(view.seats) > 1] or views
        others = [view for view in views if view not in seated]
        share = (room - len(others)) // max(1, len(seated))
        for view in seated:
            body += self._model(view, width, share)
        body += [_head(view, self.now)[:width] for view in others]
        said = "  ".join(filter(None, (self.warning, self.note)))
        rows = [head, "-" * width, *body[:room], *[""] * (room - len(body[:room])), said, KEYS]
        return [printable(row.replace("\n", " ").replace("\t", " "))[:width] for row in rows]

    def _model(self, view: ModelView, width: int, height: int) -> list[str]:
        """One instance: a headline, a row for each seat, who waits, the blocks of the KV cache."""
        for name in view.requests:  # in the order in which they came
            self.letters.of(view.model, name)
        tail = [*self._waiting(view, width), *self._blocks(view, width), *self._held(view, width)]
        rows = height - 2 - len(tail)
        seats = list(enumerate(view.seats))
        if len(seats) > rows:  # the taken ones first
            seats = sorted(seats, key=lambda seat: (not seat[1], seat[0]))[: max(1, rows - 1)]
        strip = max(LEAST_STRIP, (width - STRIP) // 2)
        steps = list(view.steps)[-strip:]
        shown = [self._seat(view, number, name, steps, width) for number, name in seats]
        if len(seats) < len(view.seats):
            rest = [name for number, name in enumerate(view.seats) if (number, name) not in seats]
            shown.append(f"  {len(rest)} more seats, {sum(map(bool, rest))} of them taken")
        return [_head(view, self.now)[:width], *shown[: max(1, rows)], *tail, ""]

    def _seat(self, view: ModelView, seat: int, name: str, steps: Sequence[StepMarks], width: int) -> str:
        strip = ""
        for step in steps:
            mark = next((mark for mark in step.marks if mark.row == seat), None)
            letter = self.letters.of(view.model, mark.id) if mark else "."
            strip += letter.upper() if mark and mark.phase == "p" else letter
        who = f"{self.letters.of(view.model, name)} {name}" if name else "-"
        line = f"{seat:>3} {who[:NAME]:<{NAME}} {strip}"
        request = view.requests.get(name)
        text = " ".join((request.text or request.prompt).split()) if request else ""
        left = width - len(line) - 2
        if not text or left < 8:
            return line[:width]
        return f"{line}  {text if len(text) <= left else '~' + text[1 - left :]}"

    def _waiting(self, view: ModelView, width: int) -> list[str]:
        if not view.queue:
            return []
        names = " ".join(f"{self.letters.of(view.model, name)}:{name}" for name in view.waiting)
        return [_fitting(f"    waiting {view.queue} ({view.why}): {names}", width)]

    def _blocks(self, view: ModelView, width: int) -> list[str]:
        """The blocks of the KV cache as a bar of their owners' letters."""
        if not view.kv_blocks:
            return []
        head = f"    KV blocks {view.kv_blocks_used} of {view.kv_blocks} "
        room = max(8, width - len(head) - 2)
        scale = min(1.0, room / view.kv_blocks)
        bar = "".join(
            self.letters.of(view.model, name) * max(1, round(count * scale)) for name, count in view.blocks.items()
        )
        return [f"{head}[{bar[:room]:.<{max(1, min(room, round(view.kv_blocks * scale)))}}]"[:width]]

    def _held(self, view: ModelView, width: int) -> list[str]:
        if view.held is None:
            return []
        names = " ".join(f"{self.letters.of(view.model, name)}:{name}" for name in view.held.get("ids", ()))
        line = f"    the step that waits: {names}"
        if view.held.get("waiting"):
            line += f"; not in it ({view.held.get('why', '')}): {' '.join(view.held['waiting'])}"
        return [_fitting(line, width)]


def _fitting(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 4]} ..."


def _head(view: ModelView, now: float | None) -> str:
    steps, tokens = view.rates(now)
    number = f" {view.instance}" if view.instance not in ("0", "0_0") else ""
    seats = f"  seats {sum(map(bool, view.seats))} of {view.slots}" if view.slots else ""
    # What is paused or idle makes no steps: the rate of the last ones would be taken for its speed.
    idle = not any(view.seats) and not view.queue
    rates = "  idle" if idle else "" if view.mode == "pause" else f"  {steps:.0f} steps/s  {tokens:.0f} tokens/s"
    return f"{view.model}{number}  {view.mode}{seats}  batch {len(view.batch)}  waiting {view.queue}{rates}"
