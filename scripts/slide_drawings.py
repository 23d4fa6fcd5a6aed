"""Draw the pictures of the slides, in letters that the fourth row reads: a fence of scripts/teach_parts/slides.md each.

A schedule is what the labs' scheduler decides on an engine that only counts (concept_schedules.py). A picture is SVG,
as wide as a slide; lengths are pixels of a slide of 1,280 by 720, and no letter is smaller than `SMALL`.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from concept_canvas import COLORS, GREY, INK, LINE, PAPER, RED
from concept_schedules import (
    PREFIXES,
    Arrival,
    Step,
    chunks,
    loop_in_model,
    loop_in_triton,
    prefix_tree,
    promised_blocks,
    prompt,
    scheduled,
)
from labsched.policy import Policy

WIDTH, SMALL, LETTER = 1220, 26, 34
LEFT = 150  # of a schedule, for the names of its rows


class Drawing:
    """A picture that grows downwards."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.height = 0.0

    def svg(self, label: str) -> str:
        """The picture, on one line; ``label`` is read out to who cannot see it."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(label)}" '
            f'viewBox="0 0 {WIDTH} {self.height:.0f}" width="{WIDTH}" height="{self.height:.0f}">'
            + "".join(self.parts)
            + "</svg>"
        )

    def grow(self, bottom: float) -> None:
        self.height = max(self.height, bottom)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int = SMALL,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write text, centred on the height ``y``."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
            f'dominant-baseline="central"{weight}>{html.escape(text)}</text>'
        )
        self.grow(y + size * 0.7)

    def box(
        self, x: float, y: float, width: float, height: float, fill: str = "none", line: str = "none", thick: float = 2
    ) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" stroke="{line}" '
            f'stroke-width="{thick}"/>'
        )
        self.grow(y + height + thick)

    def line(self, x: float, y: float, to_x: float, to_y: float, color: str = INK, thick: float = 3) -> None:
        self.parts.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{color}" stroke-width="{thick}"/>'
        )
        self.grow(max(y, to_y) + thick)

    def arrow(self, x: float, y: float, to_x: float, to_y: float, color: str = INK) -> None:
        """An arrow along one of the axes."""
        self.line(x, y, to_x, to_y, color)
        along_x, along_y = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
        back_x, back_y = to_x - 14 * along_x, to_y - 14 * along_y
        head = [
            (to_x, to_y),
            (back_x + 7 * along_y, back_y + 7 * along_x),
            (back_x - 7 * along_y, back_y - 7 * along_x),
        ]
        points = " ".join(f"{at:.1f},{down:.1f}" for at, down in head)
        self.parts.append(f'<polygon points="{points}" fill="{color}"/>')

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        name: str,
        prefill: bool = False,
        last: bool = False,
        label: str | None = None,
    ) -> None:
        """A request in a step: hollow for prefill, full for decode, with a dark bar on its last token."""
        color, shown = COLORS[name], name if label is None else label
        if prefill:
            self.box(x + 3, y + 3, width - 6, height - 6, "white", color, 6)
        else:
            self.box(x, y, width, height, color)
        if shown:
            size = LETTER if height > 44 and len(shown) * 26 < width else SMALL
            self.text(x + width / 2, y + height / 2 + 1, shown, size, color if prefill else "white", "middle", True)
        if last:
            self.box(x + width - 8, y, 8, height, INK)

    def empty(self, x: float, y: float, width: float, height: float) -> None:
        self.box(x, y, width, height, PAPER, LINE, 1.5)

    def promised(self, x: float, y: float, width: float, height: float, name: str) -> None:
        """A block that is promised to a request and not in use yet."""
        self.box(x + 1.5, y + 1.5, width - 3, height - 3, "white", COLORS[name], 3)
        for part in (0.25, 0.5, 0.75):
            self.line(x + part * width, y + 6, x + part * width, y + height - 6, COLORS[name], 1.5)

    def queued(self, x: float, y: float, name: str) -> None:
        """A request that waits, as a disc around ``x``, ``y``."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="19" fill="{COLORS[name]}"/>')
        self.text(x, y + 1, name, SMALL, "white", "middle", True)
        self.grow(y + 20)

    def row_name(self, y: float, name: str) -> None:
        self.text(LEFT - 14, y, name, SMALL, GREY, "end")

    def legend(self, *kinds: str) -> None:
        """Explain the marks, side by side, below the rest."""
        words = {
            "prefill": "prefill: prompt, first token",
            "decode": "decode: one more token",
            "last": "last token",
            "empty": "empty slot",
            "free": "free block",
            "used": "block in use",
            "promised": "promised, not in use",
        }
        x, y = 10.0, self.height + 14
        for kind in kinds:
            if kind == "promised":
                self.promised(x, y, 46, 30, "A")
            elif kind in ("empty", "free"):
                self.empty(x, y, 46, 30)
            else:
                self.cell(x, y, 46, 30, "A", kind == "prefill", kind == "last", "")
            self.text(x + 56, y + 15, words[kind], SMALL, GREY)
            x += 86 + 14.2 * len(words[kind])

    def steps(self, steps: Sequence[Step], slots: int, tall: float = 78) -> None:
        """Slots by steps, the queue below them, and the numbers of the steps."""
        top = self.height + (10 if self.height else 0)
        width = min(96.0, (WIDTH - LEFT) / len(steps))
        for slot in range(slots):
            self.row_name(top + tall * (slot + 0.5) - 2, f"slot {slot + 1}")
            for at, step in enumerate(steps):
                place = (LEFT + width * at, top + tall * slot, width - 5, tall - 5)
                share = next((share for share in step.shares if share.slot == slot), None)
                if share:
                    self.cell(*place, share.name, share.prefill, share.last)
                else:
                    self.empty(*place)
        bottom = top + tall * slots
        longest = max(len(step.waiting) for step in steps)
        if longest:
            self.row_name(bottom + 24, "waiting")
        for at, step in enumerate(steps):
            middle = LEFT + width * (at + 0.5) - 2
            for number, name in enumerate(step.waiting):
                self.queued(middle, bottom + 24 + 42 * number, name)
            self.text(middle, bottom + 22 + 42 * longest, str(at + 1), SMALL, GREY, "middle")
        self.row_name(bottom + 22 + 42 * longest, "step")


def requests(lines: Sequence[str]) -> list[Arrival]:
    """A load from lines such as "A 1 6": a name, the step before which it arrives, and the tokens of its answer."""
    words = [line.split() for line in lines]
    return [Arrival(name, int(step), prompt(2), int(answer)) for name, step, answer in words]


def load(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """The requests before they are scheduled: a row each, from the step before which it arrives."""
    drawing = Drawing()
    arrivals = requests(lines)
    last = max(each.step - 1 + each.answer for each in arrivals)
    width = min(90.0, (WIDTH - LEFT) / last)
    tall = 72 if len(arrivals) > 4 else 84
    for row, each in enumerate(arrivals):
        y = tall * row
        drawing.row_name(y + tall / 2 - 3, f"{each.answer} tokens")
        for at in range(each.answer):
            x = LEFT + width * (each.step - 1 + at)
            drawing.cell(x, y, width - 5, tall - 6, each.name, at == 0, at == each.answer - 1)
    bottom = tall * len(arrivals) + 20
    drawing.row_name(bottom, "step")
    for at in range(last):
        drawing.text(LEFT + width * (at + 0.5) - 2, bottom, str(at + 1), SMALL, GREY, "middle")
    drawing.text(LEFT, bottom + 46, "if each had the server to itself", SMALL, GREY)
    return drawing


def steps(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """A load's schedule: `slots=4`, and `static` for static batching."""
    slots = int(options.get("slots", "4"))
    drawing = Drawing()
    drawing.steps(scheduled(requests(lines), slots=slots, static="static" in options)[0], slots)
    if "legend" in options:
        drawing.legend("prefill", "decode", "last", "empty")
    return drawing


def wasted(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """Loads under static batching, one below the other, with the places that stayed empty. Lines: "title: 3 9 4 6"."""
    drawing = Drawing()
    for line in lines:
        title, _, answers = line.partition(":")
        arrivals = [Arrival("ABCD"[at], 1, prompt(2), int(answer)) for at, answer in enumerate(answers.split())]
        found = scheduled(arrivals, static=True)[0]
        free = sum(len(arrivals) - len(step.shares) for step in found)
        places = len(arrivals) * len(found)
        y = drawing.height + (28 if drawing.height else 22)
        drawing.text(LEFT, y, f"{title}: {free} of {places} places stay empty", LETTER, bold=True)
        drawing.steps(found, len(arrivals), tall=38)
    return drawing


def blocks(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """Three requests in a cache of eight blocks under a policy: `policy=max_utilization`."""
    drawing = Drawing()
    found = promised_blocks(Policy(options["policy"]))
    width, tall, top, count = (WIDTH - LEFT) / 16, 41, 44, 8
    drawing.row_name(top + count * tall / 2, "8 blocks")
    for at, step in enumerate(found):
        marks = [(share.name, n < share.in_use) for share in step.shares for n in range(share.promised)]
        x = LEFT + width * at
        for block in range(count):
            place = (x, top + tall * (count - 1 - block), width - 5, tall - 4)
            if block >= len(marks):
                drawing.empty(*place)
            elif marks[block][1]:
                drawing.cell(*place, marks[block][0])
            else:
                drawing.promised(*place, marks[block][0])
        middle = x + width / 2 - 2
        if step.evicted:
            drawing.text(middle, top - 22, f"✕ {step.evicted[0]}", LETTER, RED, "middle", True)
        for place_in_queue, name in enumerate(step.waiting):
            drawing.queued(middle, top + count * tall + 22 + 42 * place_in_queue, name)
        drawing.text(middle, top + count * tall + 66, str(at + 1), SMALL, GREY, "middle")
    drawing.row_name(top + count * tall + 22, "waiting")
    drawing.row_name(top + count * tall + 66, "step")
    drawing.legend("used", "promised", "free")
    return drawing


def budget(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """A reader and a long prompt under token budgets, one below the other: `tokens=64,8`."""
    drawing = Drawing()
    for tokens in map(int, options["tokens"].split(",")):
        top = drawing.height + (40 if drawing.height else 0)
        drawing.text(LEFT, top + 20, f"at most {tokens} tokens a step", LETTER, bold=True)
        drawing.row_name(top + 135, "A, reader")
        drawing.row_name(top + 200, "F, prompt")
        x, gaps = float(LEFT), []
        found = chunks(tokens)
        unit = (WIDTH - LEFT) / sum(share.tokens for step in found for share in step.shares)
        for step in found:
            width = unit * sum(share.tokens for share in step.shares)
            for share in step.shares:
                y = top + (170 if share.name == "F" else 106)
                label = str(share.tokens) if share.name == "F" and share.prefill else ""
                drawing.cell(x, y, width - 3, 58, share.name, share.prefill, share.last, label)
            if any(share.name == "A" for share in step.shares):
                gaps.append((width, x))
            x += width
        width, at = max(gaps)
        drawing.line(at, top + 96, at + width - 3, top + 96, RED, 6)
        drawing.text(at, top + 70, f"A's longest gap: {width / unit:.0f} tokens of work", SMALL, RED)
    return drawing


def tree(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """Prompts as words, their blocks, and what each finds in the cache."""
    drawing = Drawing()
    drawing.text(10, 18, "prompt, in blocks of 4 tokens", SMALL, GREY)
    drawing.text(880, 18, "found in the cache", SMALL, GREY)
    found = prefix_tree(PREFIXES)
    makers: dict[int, str] = {}
    for row, each in enumerate(found):
        y = 54.0 + 100 * row
        drawing.queued(30, y + 38, each.name)
        for depth, block in enumerate(each.blocks):
            seen = block in makers
            maker = makers.setdefault(block, each.name)
            x = 70 + 210 * depth
            drawing.cell(x, y, 196, 76, maker, not seen, label="found" if seen else "computed")
        x = 70 + 210 * len(each.blocks)
        drawing.cell(x, y, 110, 76, each.name, True, label="rest")
        drawing.text(880, y + 38, f"{each.tokens} of {each.prompt} tokens", LETTER, bold=True)
    return drawing


def bars(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """Measured numbers as bars: lines "words | 4.6", with `unit=ms`."""
    drawing = Drawing()
    rows = [(words.strip(), float(value)) for words, value in (line.rsplit("|", 1) for line in lines)]
    most = max(value for _, value in rows)
    numbers = [f"{value:g} {options.get('unit', '')}".strip() for _, value in rows]
    left = 21 * max(len(words) for words, _ in rows) + 24
    room = WIDTH - left - 31 * max(len(number) for number in numbers) - 20
    for row, ((words, value), number) in enumerate(zip(rows, numbers, strict=True)):
        y = 120.0 * row
        drawing.text(left - 16, y + 50, words, LETTER, INK, "end")
        width = max(room * value / most, 4)
        drawing.box(left, y + 4, width, 92, list(COLORS.values())[row % len(COLORS)])
        drawing.text(left + width + 14, y + 50, number, 42, bold=True)
    return drawing


def times(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """Requests over time: lines "model: A 0 4 515; B 50 516 981" (sent, first token, end), in ms."""
    drawing = Drawing()
    rows = []
    for line in lines:
        model, _, words = line.partition(":")
        rows.append((model, [request.split() for request in words.split(";")]))
    most = max(float(end) for _, listed in rows for _, _, _, end in listed)
    unit = (WIDTH - LEFT) / most
    for model, listed in rows:
        y = drawing.height + (24 if drawing.height else 0)
        drawing.text(LEFT, y + 18, model, LETTER, bold=True)
        for row, (name, *moments) in enumerate(listed):
            sent, first, end = map(float, moments)
            top = y + 46 + 78 * row
            drawing.row_name(top + 34, f"prompt {name}")
            drawing.box(LEFT + first * unit, top, (end - first) * unit, 66, COLORS[name])
            if (first - sent) * unit > 260:
                drawing.arrow(LEFT + sent * unit, top + 54, LEFT + first * unit - 2, top + 54, RED)
                drawing.text(LEFT + sent * unit, top + 24, f"waits {first - sent:.0f} ms", LETTER, RED, bold=True)
            else:
                words = f"first token after {first - sent:.0f} ms"
                drawing.text(LEFT + first * unit + 14, top + 34, words, LETTER, "white", bold=True)
    return drawing


def one_answer(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """A request from its prompt to its last token, with the times that a client sees."""
    drawing = Drawing()
    words = ["Paris", "for", "two", "years", "."]
    widths = [280, 170, 170, 170, 170]
    starts = [250 + sum(widths[:at]) for at in range(len(widths))]
    end = starts[-1] + widths[-1]
    drawing.text(10, 30, "I have lived in", LETTER, bold=True)
    drawing.text(10, 74, "the prompt: 4 tokens", SMALL, GREY)
    drawing.text(10, 188, "the queue", SMALL, GREY)
    drawing.line(10, 212, 240, 212, GREY, 3)
    for at, (start, width) in enumerate(zip(starts, widths, strict=True)):
        drawing.cell(start, 136, width - 8, 104, "A", at == 0, at == 4, "prefill" if at == 0 else "decode")
        drawing.arrow(start + width - 12, 132, start + width - 12, 58)
        drawing.text(start + width - 12, 30, words[at], LETTER, COLORS["A"], "end" if at == 4 else "middle", True)
        drawing.box(start, 366, width - 8, 60, PAPER, LINE)
        drawing.text(start + width / 2 - 4, 397, f"{4 + at} tokens", SMALL, GREY, "middle")
    drawing.line(10, 272, starts[1] - 12, 272, RED, 6)
    drawing.text(starts[1] - 20, 304, "TTFT: time to first token", LETTER, RED, "end")
    drawing.line(starts[1], 272, end - 8, 272, COLORS["C"], 6)
    drawing.text(starts[1] + 10, 304, "TPOT: mean time per later token", LETTER, COLORS["C"])
    drawing.text(10, 397, "in the KV cache", SMALL, GREY)
    return drawing


def loop(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """Two requests between Triton's queue and the model: `in=model` or `in=triton`."""
    drawing = Drawing()
    inside = options["in"] == "model"
    found = loop_in_model() if inside else loop_in_triton()
    drawing.row_name(56, "Triton")
    drawing.row_name(222, "model.py")
    drawing.box(LEFT, 10, WIDTH - LEFT - 4, 92, PAPER, LINE)
    width = (WIDTH - LEFT - 40) / len(found)
    for at, step in enumerate(found):
        x = LEFT + 30 + width * at
        names = [share.name for share in step.shares]
        begins = not inside or at == 0 or [share.name for share in found[at - 1].shares] != names
        over = not inside or at + 1 == len(found) or [share.name for share in found[at + 1].shares] != names
        if begins:
            drawing.arrow(x + 26, 104, x + 26, 168)
            drawing.text(x + 40, 136, "execute", SMALL, GREY)
        for row, share in enumerate(step.shares):
            drawing.cell(x, 174 + 92 * row, width - 14, 84, share.name, share.prefill, share.last)
        if over:
            drawing.arrow(x + width - 34, 170, x + width - 34, 106, COLORS["C"])
        waiting = step.waiting if inside else names
        for place, name in enumerate(waiting):
            drawing.queued(x + (width / 2 if inside else 20) + 42 * place, 56, name)
    drawing.text(LEFT, 388, "↓ Triton calls execute with a batch", SMALL, GREY)
    drawing.text(LEFT + 540, 388, "↑ execute returns: Triton decides again", SMALL, COLORS["C"])
    return drawing


def newcomer(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """The gaps that a running request sees while another joins it: steps as wide as they are long, in ms."""
    drawing = Drawing()
    x = float(LEFT)
    unit = (WIDTH - LEFT) / 48.4
    drawing.row_name(120, "A")
    drawing.row_name(222, "B")
    for at, length in enumerate((4.6, 4.6, 4.6, 11, 5.9, 5.9, 5.9, 5.9)):
        width = unit * length
        drawing.cell(x, 74, width - 6, 92, "A", label="4.6" if at < 3 else "" if at == 3 else "5.9")
        if at >= 3:
            drawing.cell(x, 176, width - 6, 92, "B", at == 3, label="prompt" if at == 3 else "5.9")
        if at == 3:
            drawing.line(x, 56, x + width - 6, 56, RED, 6)
            drawing.text(x + width / 2, 24, "one longer gap", LETTER, RED, "middle", True)
        x += width
    drawing.text(LEFT, 306, "milliseconds a step, with a KV cache, on two cores", SMALL, GREY)
    return drawing


def alternate(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """Two requests that take turns, and the same two in one batch."""
    drawing = Drawing()
    for title, together in (("a batch for each: two executions for two tokens", False), ("one batch for both", True)):
        y = drawing.height + (30 if drawing.height else 0)
        drawing.text(LEFT, y + 20, title, LETTER, bold=True)
        for row, name in enumerate("AB"):
            drawing.row_name(y + 84 + 72 * row, name)
            for at in range(10):
                place = (LEFT + 107.0 * at, y + 52 + 72 * row, 101.0, 66.0)
                if together or at % 2 == row:
                    drawing.cell(*place, name)
                else:
                    drawing.empty(*place)
    return drawing


def gone(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """A slot whose client went away, until the model notices, and the request that gets it."""
    drawing = Drawing()
    for row, cells in enumerate(("AAAAAAAAAA", "BBB....CCC")):
        drawing.row_name(98 + 92 * row, f"slot {row + 1}")
        for at, name in enumerate(cells):
            place = (LEFT + 107.0 * at, 56.0 + 92 * row, 101.0, 84.0)
            if name == ".":
                drawing.empty(*place)
            else:
                drawing.cell(*place, name, at in (0, 7) and (row == 1 or at == 0))
    x = LEFT + 107 * 3 - 3
    drawing.line(x, 44, x, 240, RED, 6)
    drawing.text(x + 6, 22, "B's client goes away", LETTER, RED, bold=True)
    drawing.row_name(270, "waiting")
    for at in range(3, 7):
        drawing.queued(LEFT + 107 * at + 51, 270, "C")
    return drawing


def recomputed(options: dict[str, str], lines: Sequence[str]) -> Drawing:
    """The tokens that each step computes for each of three requests, of which one is preempted."""
    drawing = Drawing()
    found = promised_blocks(Policy.MAX_UTILIZATION)
    width = (WIDTH - LEFT) / len(found)
    for row, name in enumerate("ABC"):
        y = 50.0 + 92 * row
        drawing.row_name(y + 42, name)
        for at, step in enumerate(found):
            share = next((share for share in step.shares if share.name == name), None)
            if share:
                place = (LEFT + width * at, y, width - 6, 84.0)
                drawing.cell(*place, name, share.prefill, share.last, str(share.tokens))
            elif name in step.waiting:
                drawing.queued(LEFT + width * (at + 0.5) - 3, y + 42, name)
            if name in step.evicted:
                drawing.text(LEFT + width * at, 24, "✕ C is preempted", LETTER, RED, bold=True)
    for at in range(len(found)):
        drawing.text(LEFT + width * (at + 0.5) - 3, 346, str(at + 1), SMALL, GREY, "middle")
    drawing.row_name(346, "step")
    drawing.text(LEFT, 392, "numbers: tokens that the step computes", SMALL, GREY)
    return drawing


DRAWINGS: dict[str, Callable[[dict[str, str], Sequence[str]], Drawing]] = {
    "load": load,
    "steps": steps,
    "wasted": wasted,
    "blocks": blocks,
    "budget": budget,
    "tree": tree,
    "bars": bars,
    "times": times,
    "one-answer": one_answer,
    "loop": loop,
    "newcomer": newcomer,
    "alternate": alternate,
    "gone": gone,
    "recomputed": recomputed,
}


WITH_DATA = {"load", "steps", "wasted", "bars", "times"}  # the lines of the others are words for who cannot see them


def draw(fence: str, body: str, label: str) -> str:
    """The SVG of a fence, by its info string ("steps slots=2 static") and its lines. Raises KeyError."""
    kind, *words = fence.split()
    options = dict(word.partition("=")[::2] for word in words)
    lines = [line for line in body.splitlines() if line.strip()]
    return DRAWINGS[kind](options, lines).svg(label if kind in WITH_DATA else " ".join(lines))
