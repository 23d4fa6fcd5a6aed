"""The pages for everybody: axe-core, a keyboard alone, the strips in words, less motion, and a window at 200 %."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accessible import MOVES, ZOOMED, hidden_by_zoom, violations
from chat_stand_in import chat_stand_in
from checkout import ROOT
from lab_server import LabServer
from machinery import labctl
from step_logs import write_run
from watch_page import LAPTOP, Shown, Visitor, shown, watch

from labctl.pages.live import replay

pytestmark = pytest.mark.night

__all__ = ["shown"]
SITE_PYTHON = ROOT / ".venv" / "site" / "bin" / "python"


def busy(shown: Shown) -> None:
    """Two models, a waiting request, counters, and a clock that stands still."""
    shown.head("Lab 02", "m", "n")
    for _ in range(3):
        shown.step("m", ["1"], waiting=["2"], why="no slot", queue=1, blocks=[2], kv_blocks=8, kv_blocks_used=2)
    shown.asks("9", "n")
    rows = [{"model": "m", "facts": [["batches", "1", "3"]], "notes": ["a note"]}]
    shown.take([{"k": "counters", "rows": rows}, {"k": "clock", "paused": True, "slow": 1, "until": None}])


def empty(shown: Shown) -> None:
    shown.head("Lab 02", "m")


def guessing(shown: Shown) -> None:
    busy(shown)
    shown.page.click("#guess")
    shown.page.locator(".teller").first.click()
    shown.page.locator(".seat[data-request='1']").click()
    shown.settle()


def routed(shown: Shown) -> None:
    shown.head("Lab 09", "m")
    shown.step("m", ["1"])
    server = {"name": "1", "score": "-16", "cached": 0, "requests": 1, "tokens": 16}
    route = {"k": "route", "t": 1.0, "request": "1", "chosen": "1", "prompt": 16, "found": 0, "servers": [server]}
    shown.take([{**route, "words": "request 1 went to server 1", "sum": "round robin, 1 request"}])
    shown.page.click("#routed")
    shown.settle()


STATES = pytest.mark.parametrize("state", [empty, busy, guessing, routed])


@STATES
def test_axe_finds_nothing_on_the_live_page(shown: Shown, state: Callable[[Shown], None]) -> None:
    state(shown)
    assert violations(shown.page) == []


@STATES
def test_the_live_page_is_whole_at_200_percent(shown: Shown, state: Callable[[Shown], None]) -> None:
    state(shown)
    assert hidden_by_zoom(shown.page) == []


@pytest.fixture
def timeline(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """``timeline.html`` of a run in which request 2 waits for request 1, which was sent before it."""
    write_run(tmp_path)
    path = replay.write_timeline_page(tmp_path)
    assert path
    page = browser.new_page(viewport=LAPTOP, bypass_csp=True)
    page.goto(path.as_uri())
    page.locator(".facts[data-step]").wait_for()
    yield page
    page.close()


def test_axe_finds_nothing_on_a_timeline_which_is_whole_at_200_percent(timeline: Any) -> None:
    assert violations(timeline) == [] and hidden_by_zoom(timeline) == []


def test_a_timeline_says_in_words_how_long_a_request_waited_for_another(timeline: Any) -> None:
    timeline.get_by_role("button", name="m: the steps in words").click()
    timeline.locator("#seek").fill("1000")  # the end: a recording opens at its first step
    timeline.locator(".told li", has_text="request B").wait_for()
    assert timeline.locator(".told li").all_inner_texts() == [
        "request B waited 374 tokens for request A; 2 tokens in steps 375 to 376, slot 1; ended: length",
        "request A did not wait; 374 tokens in steps 1 to 374, slot 1; ended: length",
    ]


def test_a_request_that_waits_is_told_in_words_as_long_as_it_does(shown: Shown) -> None:
    shown.head("Lab 05", "m")
    shown.page.locator("h1").wait_for()
    for _ in range(3):
        shown.step("m", ["1", "2"], made=[1, 2], waiting=["3"], why="no slot", queue=1)
    shown.page.get_by_role("button", name="m: the steps in words").click()
    told = shown.page.locator(".told li")
    told.get_by_text("request C has waited 9 tokens for requests A and B (no slot)", exact=True).wait_for()
    shown.step("m", ["1", "3"], made=[1, 1], ended={"3": "stop"}, evicted=["2"])
    told.get_by_text(
        "request C waited 9 tokens for requests A and B (no slot); 1 token in step 4", exact=False
    ).wait_for()
    told.get_by_text(
        "request B did not wait; 6 tokens in steps 1 to 3, slot 2; preempted 1 time", exact=True
    ).wait_for()


def test_who_has_the_focus_on_a_waiting_request_keeps_it_while_the_page_goes_on(shown: Shown) -> None:
    shown.head("Lab 05", "m")
    shown.step("m", ["1"], waiting=["2", "3"], why="no slot", queue=2)
    shown.page.locator(".chip[data-request='3']").focus()
    shown.step("m", ["2"], waiting=["3"], why="no slot", queue=1, ended={"1": "length"})
    assert shown.page.evaluate("document.activeElement.textContent") == "C no slot"


def test_nothing_moves_by_itself_for_a_person_who_wants_less_motion(shown: Shown) -> None:
    busy(shown)
    shown.page.emulate_media(reduced_motion="reduce")
    button = shown.page.locator("#step")
    assert float(button.evaluate("(one) => getComputedStyle(one).transitionDuration").rstrip("s")) == 0
    shown.page.evaluate("watching.updated = performance.now() + 60000")  # it was drawn just now
    before = shown.facts("m")
    shown.page.evaluate("(events) => watching.take(events)", shown.feed.events([shown.line("m", ["1"])]))
    shown.page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert shown.facts("m") == before
    shown.page.evaluate("watching.updated = 0")
    shown.page.get_by_text("step 4").wait_for()


# -- a keyboard alone -------------------------------------------------------------------------------------------------


class Keyboard:
    """The live page by its keys: Tab to a control, then what is typed there."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor, self.keys = visitor, visitor.page.keyboard

    def go(self, selector: str) -> None:
        """Press Tab until a control has the focus."""
        for _ in range(80):
            if self.visitor.page.evaluate("(one) => document.activeElement.matches(one)", selector):
                return
            self.keys.press("Tab")
        raise AssertionError(f"Tab does not come to {selector}")

    def press(self, selector: str) -> None:
        self.go(selector)
        self.keys.press("Enter")

    def send(self, model: str, prompt: str, tokens: int) -> str:
        before = set(self.visitor.names())
        self.go("#prompt")
        self.keys.press("Control+a")
        self.keys.type(prompt)
        self.go("#model")
        self.keys.type(model)
        self.go("#tokens")
        self.keys.press("Control+a")
        self.keys.type(str(tokens))
        self.press("#one")
        self.visitor.until(f"watching.store.asked.size > {len(before)}")
        (name,) = set(self.visitor.names()) - before
        return name


@pytest.fixture
def visitor(browser: Any, lab_server: Callable[..., LabServer], checkout: Path) -> Iterator[Visitor]:
    lab_server("iterative", max_batch_size=2)
    with watch("iterative", checkout) as address:
        visitor = Visitor(browser, address)
        try:
            yield visitor
        finally:
            labctl("clock", "iterative", "run", root=checkout)
            visitor.page.close()


@pytest.mark.xdist_group("iterative")
def test_lab_02_can_be_done_with_the_keyboard_alone(visitor: Visitor) -> None:
    """The steps of "Watch it" in its README: stop, send, guess, step, two that wait, what each waited for, run."""
    page, keyboard = visitor.page, Keyboard(visitor)
    keyboard.press("#pause")
    page.locator("#pause[aria-pressed=true]").wait_for()
    first = {model: keyboard.send(model, "The fox", 9) for model in ("iterative-gpt2", "simple-gpt2")}
    for model, name in first.items():
        visitor.lane(model).locator(".held", has_text=name).wait_for()
    second = {model: keyboard.send(model, "Anna", 9) for model in first}
    keyboard.press("#guess")
    keyboard.go("#quizzed")
    keyboard.keys.type("iterative")
    keyboard.press(f".lane[data-lane='iterative-gpt2'] [data-request='{first['iterative-gpt2']}']")
    keyboard.press("#reveal")
    page.locator("#verdict", has_text=f"Right: {first['iterative-gpt2']}").wait_for()
    keyboard.keys.press("Escape")
    page.locator("#quiz").wait_for(state="hidden")
    for _ in range(4):
        with page.expect_response(lambda answer: answer.url.endswith("/clock")):
            keyboard.press("#step")
    names = f"{first['iterative-gpt2']}, {second['iterative-gpt2']}"
    visitor.until("document.querySelectorAll('.lane[data-lane=iterative-gpt2] .seat:not(.empty)').length === 2")
    assert visitor.seated("iterative-gpt2") == names.split(", ")
    third = keyboard.send("iterative-gpt2", "I have", 3)
    keyboard.press("#step")
    visitor.lane("iterative-gpt2").locator(".chip", has_text=third).wait_for()
    keyboard.press("#pause")
    for name in (*first.values(), *second.values(), third):
        visitor.over(name)
    for model in first:
        keyboard.press(f".lane[data-lane='{model}'] .teller")
    waited = visitor.lane("simple-gpt2").locator(".told li", has_text=f"request {second['simple-gpt2']} waited")
    waited.get_by_text(f"waited 9 tokens for request {first['simple-gpt2']}", exact=False).wait_for()
    assert visitor.lane("iterative-gpt2").locator(".told li", has_text=f"request {third} waited").count() == 1


# -- the chat page and the site --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["light", "dark"])
def chat_page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The chat page with one answer on it; the model is a stand-in."""
    with chat_stand_in() as address:
        page = browser.new_page(viewport=LAPTOP, bypass_csp=True, reduced_motion="reduce")
        page.set_default_timeout(180_000)
        page.goto(f"{address}/?__theme={request.param}")
        page.locator("#prompt textarea").fill("a")
        page.locator("#prompt textarea").press("Enter")
        page.get_by_text("tokens/s").wait_for()
        yield page
        page.close()


def test_axe_finds_nothing_on_the_chat_page(chat_page: Any) -> None:
    assert violations(chat_page) == []


def test_nothing_moves_on_the_chat_page_for_a_person_who_wants_less_motion(chat_page: Any) -> None:
    assert chat_page.evaluate(MOVES) == []


def test_the_chat_page_is_whole_at_200_percent(chat_page: Any) -> None:
    assert hidden_by_zoom(chat_page) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SITE_PYTHON.exists():
        if os.environ.get("LABS_REQUIRE_SITE"):
            pytest.fail("LABS_REQUIRE_SITE is set, but Sphinx is not installed: make site")
        pytest.skip("Sphinx is not installed: make site")
    folder = tmp_path_factory.mktemp("site") / "site"
    subprocess.run([ROOT / "scripts" / "site" / "build.sh", folder], check=True, timeout=300)
    return folder


def test_axe_finds_nothing_on_the_site_which_is_whole_at_200_percent(browser: Any, site: Path) -> None:
    page = browser.new_page(viewport=LAPTOP)
    found = {}
    for path in sorted(site.rglob("*.html")):
        page.set_viewport_size(LAPTOP)
        page.goto(path.as_uri())
        if wrong := [*violations(page), *hidden_by_zoom(page, ".sidebar-drawer, .toc-drawer")]:
            found[path.relative_to(site).as_posix()] = wrong
    page.close()
    assert found == {}


def test_the_sites_table_of_contents_opens_with_a_button_at_200_percent(browser: Any, site: Path) -> None:
    page = browser.new_page(viewport=ZOOMED)
    page.goto((site / "index.html").as_uri())
    link = page.locator(".sidebar-tree a", has_text="02 iterative scheduling")
    page.locator(".mobile-header label[for='__navigation']").click()
    link.click()
    assert "02-iterative-scheduling" in page.url
    page.close()
