"""The live view as lines of text, for 80 columns by 24 rows and without colour; the caller may colour them.

A request is called A, B, C ... AA in order of arrival. In the strip it is the last letter of its name: capital in a
step that computes its prompt (prefill), small in one that adds a token (decode), "." where a slot was empty. Time goes
to the right, one column a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from labctl.pages.live.lines import Line
from labctl.pages.live.state import LiveState, ModelView
from labkit.names import LetterNames
from labkit.printable import printable
from labkit.tables import wrap_text

# No-break spaces keep a key beside what it does.
KEYS = (
    "p\xa0pause\xa0or\xa0run  s\xa0step  t\xa0ten\xa0steps  r\xa0run  +\xa0slower  -\xa0faster  m\xa0model  q\xa0quit"
)
LEAST_STRIP = 16  # columns
NAME = 3
STRIP = 3 + 1 + NAME + 1  # the column in which a slot's strip begins


@dataclass
class TerminalState:
    """What the screen shows in addition to the state itself."""

    title: str
    keys: str = KEYS
    chosen: str = ""  # the model that the keys mean; "" for all
    note: str = ""  # the result of the last key
    warning: str = ""  # before the note
    what_if: str = ""  # another policy's first difference
    routes: str = ""  # the summary of a router's decisions
    now: float | None = None  # on the clock of the log; None: the time of each model's last line
    _names: LetterNames = field(default_factory=LetterNames)

    def lines(self, state: LiveState, width: int, height: int) -> list[str]:
        """The whole screen: exactly ``height`` lines of at most ``width`` columns."""
        views = [view for view in state.models.values() if self.chosen in ("", view.model)]
        modes = sorted({view.mode for view in views} or {"run"})
        head = f"{self.title}  {'/'.join(modes)}"
        if self.chosen:
            head += f"  keys mean {self.chosen}"
        keys = wrap_text(self.keys, width, "").replace("\xa0", " ").split("\n")
        texts = [wrap_text(text, width, "") for text in (self.what_if, self.routes) if text]
        summaries = [row for text in texts for row in text.split("\n")]
        room = height - 3 - len(keys) - len(summaries)
        body: list[str] = []
        if not views:
            body = ["", "no step yet: send a request, or wait for one"]
        # Models with several slots share the room; each of the others has one line.
        many = [view for view in views if view.slots > 1 or len(view.seats) > 1] or views
        others = [view for view in views if view not in many]
        for view in many:
            share = (room - len(others)) // len(many)
            body += self._model(view, width, share)
        body += [_head(view, self.now)[:width] for view in others]
        body = body[:room]
        messages = "  ".join(filter(None, (self.warning, self.note)))
        rows = [head, "-" * width, *body, *[""] * (room - len(body)), *summaries, messages, *keys]
        return [printable(row.replace("\n", " ").replace("\t", " "))[:width] for row in rows]

    def _model(self, view: ModelView, width: int, height: int) -> list[str]:
        """One instance: a headline, a line for each slot, the waiting requests, the blocks of the KV cache."""
        self._names.take(view.requests)  # in the order in which they came
        tail = [*self._waiting(view), *self._blocks(view, width), *self._held(view)]
        tail = [line if len(line) <= width else f"{line[: width - 4]} ..." for line in tail]
        room = height - 2 - len(tail)
        slots = list(enumerate(view.seats))
        hidden: list[tuple[int, str]] = []
        if len(slots) > room:  # the taken ones first
            slots.sort(key=lambda slot: (not slot[1], slot[0]))
            slots, hidden = slots[: max(1, room - 1)], slots[max(1, room - 1) :]
        steps = list(view.steps)[-max(LEAST_STRIP, (width - STRIP) // 2) :]
        shown = [self._slot(view, number, name, steps, width) for number, name in slots]
        if hidden:
            shown.append(f"  {len(hidden)} more slots, {sum(bool(name) for _, name in hidden)} of them taken")
        return [_head(view, self.now)[:width], *shown[: max(1, room)], *tail, ""]

    def _slot(self, view: ModelView, slot: int, name: str, steps: Sequence[Line], width: int) -> str:
        """A slot's number, its request, the steps as letters, and the end of the request's text."""
        strip = "".join(self._letter(step, slot) for step in steps)
        called = self._names[name] if name else "-"
        line = f"{slot:>3} {called[:NAME]:<{NAME}} {strip}"
        request = view.requests.get(name)
        text = " ".join((request.text or request.prompt).split()) if request else ""
        left = width - len(line) - 2
        if not text or left < 8:
            return line[:width]
        if len(text) > left:
            text = "~" + text[1 - left :]
        return f"{line}  {text}"

    def _letter(self, step: Line, slot: int) -> str:
        for row, id, phase in zip(step["rows"], step["ids"], step["phase"], strict=True):
            if row == slot:
                letter = self._names[id][-1]
                return letter if phase == "p" else letter.lower()
        return "."

    def _named(self, names: Sequence[str]) -> str:
        return " ".join(self._names[name] for name in names)

    def _waiting(self, view: ModelView) -> list[str]:
        if not view.queue:
            return []
        return [f"    waiting {view.queue} ({view.why}): {self._named(view.waiting)}"]

    def _blocks(self, view: ModelView, width: int) -> list[str]:
        """The blocks of the KV cache as a bar of their owners' letters."""
        if not view.kv_blocks:
            return []
        head = f"    KV blocks {view.kv_blocks_used} of {view.kv_blocks} "
        room = max(8, width - len(head) - 2)
        scale = min(1.0, room / view.kv_blocks)
        bar = "".join(self._names[name][-1].lower() * max(1, round(n * scale)) for name, n in view.blocks.items())
        long = max(1, min(room, round(view.kv_blocks * scale)))
        return [f"{head}[{bar[:room]:.<{long}}]"[:width]]

    def _held(self, view: ModelView) -> list[str]:
        if view.held is None:
            return []
        line = f"    the step that waits: {self._named(view.held.get('ids', ()))}"
        if view.held.get("waiting"):
            line += f"; not in it ({view.held.get('why', '')}): {self._named(view.held['waiting'])}"
        return [line]


def _head(view: ModelView, now: float | None) -> str:
    steps, tokens = view.rates(now)
    number = f" {view.instance}" if view.instance not in ("0", "0_0") else ""
    slots = f"  slots {sum(map(bool, view.seats))} of {view.slots}" if view.slots else ""
    rates = f"  {steps:.0f} steps/s  {tokens:.0f} tokens/s"
    # An idle or paused model makes no steps: the rate of its last ones would be taken for its speed.
    if not any(view.seats) and not view.queue:
        rates = "  idle"
    elif view.mode == "pause":
        rates = ""
    return f"{view.model}{number}  {view.mode}{slots}  batch {len(view.batch)}  waiting {view.queue}{rates}"
