"""What axe-core finds on a page, and what a person sees of it who zooms in."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
ZOOMED = {"width": 640, "height": 400}  # a window of 1280 by 800 pixels at 200 %
# What a person may want to press or fill in, and cannot reach: it lies outside the page's width.
OUTSIDE = """(but) => [...document.querySelectorAll("button, select, input, textarea, a")]
    .filter((one) => !(but && one.closest(but)) && one.checkVisibility() && one.getClientRects().length)
    .filter((one) => {
        const box = one.getBoundingClientRect();
        return box.left < -1 || box.right > document.documentElement.clientWidth + 1;
    }).map((one) => one.outerHTML.slice(0, 120))"""
MOVES = """() => document.getAnimations().filter((one) => one.playState === "running")
    .map((one) => one.effect.target.outerHTML.slice(0, 120))"""


def violations(page: Any) -> list[str]:
    """Each violation of a rule of axe-core, the best practices among them: the rule, and the element's HTML."""
    page.evaluate(AXE + "; undefined")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {node['html'][:160]} ({node['failureSummary'][:300]})"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def hidden_by_zoom(page: Any, but: str = "") -> list[str]:
    """What lies beside the window at 200 %: the page itself, if it is too wide, and each control.

    ``but``: a selector of what a button brings in.
    """
    page.set_viewport_size(ZOOMED)
    wide = page.evaluate("document.documentElement.scrollWidth")
    return [*([f"the page is {wide} wide"] if wide > ZOOMED["width"] else []), *page.evaluate(OUTSIDE, but)]
