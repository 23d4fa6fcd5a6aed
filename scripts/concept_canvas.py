"""A small canvas for the concept drawings: cells, tokens of a queue, arrows and captions, in one palette.

Lengths are in points of a drawing that is 1,000 points wide; a point is two pixels.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

WIDTH = 1000
SCALE = 2
INK, GREY, LINE, PAPER = "#111111", "#555555", "#bbbbbb", "#f3f3f3"
RED = "#c1121f"
# Okabe and Ito's colours, which colour-blind people tell apart; a request keeps its colour in every drawing.
COLORS = {"A": "#0072b2", "B": "#e69f00", "C": "#009e73", "D": "#cc79a7", "E": "#56b4e9", "F": "#d55e00"}
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
Box = tuple[float, float, float, float]


class Canvas:
    """A white picture, `WIDTH` by `height` points."""

    def __init__(self, height: int) -> None:
        self.image = Image.new("RGB", (WIDTH * SCALE, height * SCALE), "white")
        self.draw = ImageDraw.Draw(self.image)

    def save(self, path: Path) -> None:
        self.image.quantize(224, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)

    def text(
        self, x: float, y: float, text: str, size: float = 12, bold: bool = False, fill: str = INK, anchor: str = "la"
    ) -> None:
        """Write text; `anchor` as in Pillow: "la" hangs from its upper left corner, "mm" is centred."""
        name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
        font = ImageFont.truetype(str(FONTS / name), round(size * SCALE))
        self.draw.text((x * SCALE, y * SCALE), text, font=font, fill=fill, anchor=anchor)

    def heading(self, x: float, y: float, title: str, subtitle: str) -> None:
        self.text(x, y, title, 16, bold=True)
        self.text(x, y + 24, subtitle, 12, fill=GREY)

    def rectangle(self, box: Box, fill: str | None = None, outline: str | None = None, width: float = 1) -> None:
        scaled = [round(value * SCALE) for value in box]
        self.draw.rectangle(scaled, fill=fill, outline=outline, width=round(width * SCALE))

    def line(self, points: list[tuple[float, float]], fill: str = INK, width: float = 1.5) -> None:
        self.draw.line([(x * SCALE, y * SCALE) for x, y in points], fill=fill, width=round(width * SCALE))

    def arrow(self, start: tuple[float, float], end: tuple[float, float], fill: str = INK, width: float = 1.5) -> None:
        (x, y), (to_x, to_y) = start, end
        length = max(((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5, 1)
        unit_x, unit_y = (to_x - x) / length, (to_y - y) / length
        neck_x, neck_y = to_x - 8 * unit_x, to_y - 8 * unit_y
        self.line([start, (neck_x, neck_y)], fill, width)
        head = [(to_x, to_y), (neck_x - 4 * unit_y, neck_y + 4 * unit_x), (neck_x + 4 * unit_y, neck_y - 4 * unit_x)]
        self.draw.polygon([(x * SCALE, y * SCALE) for x, y in head], fill=fill)

    def cell(self, box: Box, name: str, prefill: bool = False, last: bool = False, label: str = "") -> None:
        """One request in one step: hollow for prefill, full for decode, with a dark bar on its last token."""
        x, y, right, bottom = box
        color, shown = COLORS[name], label or name
        if prefill:
            self.rectangle(box, "white", color, 3)
        else:
            self.rectangle(box, color)
        fill = color if prefill else "white"
        self.text((x + right) / 2, (y + bottom) / 2, shown, 12, bold=True, fill=fill, anchor="mm")
        if last:
            self.rectangle((right - 5, y, right, bottom), INK)

    def empty(self, box: Box) -> None:
        """A slot or a block that is not used."""
        self.rectangle(box, PAPER, LINE)
        self.line([(box[0], box[3]), (box[2], box[1])], "#cccccc", 0.75)

    def promised(self, box: Box, name: str) -> None:
        """A block that is promised to a request and not used yet."""
        self.rectangle(box, "white", COLORS[name], 1.5)
        x, y, right, bottom = box
        for part in (0.25, 0.5, 0.75):
            at = x + part * (right - x)
            self.line([(at, y + 3), (at, bottom - 3)], COLORS[name], 0.75)

    def queued(self, x: float, y: float, names: list[str]) -> None:
        for number, name in enumerate(names):
            left = x + 18 * number
            scaled = [value * SCALE for value in (left, y, left + 16, y + 16)]
            self.draw.ellipse(scaled, fill=COLORS[name])
            self.text(left + 8, y + 8, name, 9, bold=True, fill="white", anchor="mm")

    def box(self, box: Box, title: str, lines: list[str], color: str = INK, fill: str = "white") -> None:
        """A labelled box, as of a part of the server."""
        self.rectangle(box, fill, color, 1.5)
        middle = (box[0] + box[2]) / 2
        self.text(middle, box[1] + 9, title, 12, bold=True, fill=color, anchor="ma")
        for number, line in enumerate(lines):
            self.text(middle, box[1] + 30 + 16 * number, line, 10.5, fill=GREY, anchor="ma")

    def legend(self, y: float, kinds: list[str]) -> None:
        """Explain the marks, side by side."""
        words = {
            "prefill": "prefill: the prompt, first token",
            "decode": "decode: one more token",
            "last": "last token",
            "empty": "empty slot",
            "free": "free block",
            "used": "block in use",
            "promised": "promised, not in use",
        }
        x = 20.0
        for kind in kinds:
            mark = (x, y, x + 30, y + 18)
            if kind in ("prefill", "decode", "used", "last"):
                self.cell(mark, "A", prefill=kind == "prefill", last=kind == "last", label=" ")
            elif kind == "promised":
                self.promised(mark, "A")
            else:
                self.empty(mark)
            self.text(x + 38, y + 9, words[kind], 11, fill=GREY, anchor="lm")
            font = ImageFont.truetype(str(FONTS / "DejaVuSans.ttf"), 11 * SCALE)
            x += 66 + font.getlength(words[kind]) / SCALE
