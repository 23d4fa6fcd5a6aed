"""How the live page looks and what its keys do, in a real browser at the sizes that people have; no server."""

from __future__ import annotations

from typing import Any

import pytest
from watch_page import LAPTOP, TITLE, Shown, shown

pytestmark = pytest.mark.night

__all__ = ["shown"]
PHONE = {"width": 390, "height": 844}
TITLES = (
    TITLE,
    "Lab 05: Static against in-flight batching, and two ways to share the KV cache",
    "Lab 06: A title of another length, which nearly fits on one line of it",
)
LONG = "p128-7e59"


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("title", TITLES)
def test_the_title_is_whole_and_the_page_is_no_wider_than_the_window(
    shown: Shown, title: str, size: dict[str, int]
) -> None:
    shown.page.set_viewport_size(size)
    shown.head(title, "m")
    shown.step("m", ["1"])
    for state in ({"paused": True}, {"paused": False, "slow": 100}, {"paused": False}):
        shown.take([{"k": "clock", "slow": 1, "until": None, **state}])
        box = "(all) => all.map((one) => [one.scrollWidth <= one.clientWidth, getComputedStyle(one).textOverflow])"
        assert shown.page.eval_on_selector_all("h1", box) == [[True, "clip"]]
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_the_buttons_do_not_move_when_the_clock_is_set(shown: Shown) -> None:
    shown.head(TITLES[1], "m")
    shown.step("m", ["1"])
    places = set()
    for state in ({"paused": True}, {"paused": False, "slow": 100}, {"paused": False, "slow": 1}):
        shown.take([{"k": "clock", "slow": 1, "until": None, **state}])
        box = shown.page.locator("#step").bounding_box()
        places.add((box["x"], box["y"]))
    assert len(places) == 1


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_no_name_of_a_request_is_cut_off_or_broken(shown: Shown, size: dict[str, int]) -> None:
    shown.page.set_viewport_size(size)
    shown.head(TITLES[0], "simple-gpt2", "iterative-gpt2")
    shown.asks(LONG, "iterative-gpt2", text=" lived", first=0.494)
    shown.step("iterative-gpt2", [LONG, "p2-7e59"])
    head = {"model": "iterative-gpt2", "instance": "0", "t": 200, "dur": 0}
    held = {**head, "kind": "held", "ids": [LONG, "p2-7e59", "p3-7e59"]}
    shown.take(shown.feed.events([held]))
    assert shown.cut(".seat b") == [] and shown.cut(".request b") == [] and shown.cut(".held .name") == []
    seat, column = (shown.page.locator(one).first.bounding_box() for one in (".seat b", ".seat"))
    assert seat["x"] + seat["width"] <= column["x"] + column["width"]


def test_what_is_idle_or_paused_makes_no_tokens_and_holds_no_blocks(shown: Shown) -> None:
    shown.head(TITLES[1], "m")
    shown.step("m", ["1", "2"], blocks=[2, 1], kv_blocks=8, kv_blocks_used=3)
    assert "tokens/s" in shown.facts("m") and "KV 3 of 8" in shown.facts("m")
    shown.take([{"k": "clock", "paused": True, "slow": 1, "until": None}])
    assert "tokens/s" not in shown.facts("m")
    shown.take([{"k": "clock", "paused": False, "slow": 1, "until": None}])
    ended: dict[str, Any] = {"ended": {"1": "length", "2": "length"}, "seats": [""] * 4}
    shown.step("m", ["1", "2"], blocks=[2, 1], kv_blocks=8, kv_blocks_used=3, **ended)
    assert "idle" in shown.facts("m") and "tokens/s" not in shown.facts("m") and "KV 0 of 8" in shown.facts("m")
    assert shown.page.locator(".owners").inner_text() == ""


def test_a_model_whose_log_does_not_say_when_requests_end_is_idle_after_a_moment(shown: Shown) -> None:
    shown.head(TITLES[0], "m")
    shown.take(
        shown.feed.events([{"t": 100, "dur": 0.01, "model": "m", "instance": "0", "kind": "step", "ids": ["row 0"]}])
    )
    shown.page.locator(".facts", has_text="idle").wait_for()
    assert "tokens/s" not in shown.facts("m") and shown.page.locator("#invite").is_visible()


def test_a_sequence_keeps_its_seat_however_long_it_is_silent(shown: Shown) -> None:
    shown.head(TITLES[0], "m", "other")
    head = {"t": 100, "dur": 0.01, "instance": "0", "kind": "step", "ids": ["7"]}
    shown.take(shown.feed.events([{**head, "model": "m", "start": [1], "end": [0]}, {**head, "model": "other"}]))
    shown.page.locator(".lane[data-lane='other'] .facts", has_text="idle").wait_for()  # so long they are silent
    assert shown.page.locator(".lane[data-lane='m'] .seat[data-request='7']").count() == 1


def test_a_request_has_its_colour_from_when_it_is_sent(shown: Shown) -> None:
    shown.head(TITLES[0], "m")
    shown.step("m", ["1"])
    shown.asks("3", "m")
    chip, entry = (shown.page.locator(one).first for one in (".chip", ".request"))
    waiting = chip.evaluate("(one) => getComputedStyle(one).borderLeftColor")
    assert entry.evaluate("(one) => getComputedStyle(one).borderLeftColor") == waiting
    shown.step("m", ["1", "3"], t=2e9)
    seat = shown.page.locator(".seat[data-request='3'] i")
    assert seat.evaluate("(one) => getComputedStyle(one).backgroundColor") == waiting


def test_an_empty_page_says_what_to_do_until_somebody_does(shown: Shown) -> None:
    shown.head(TITLES[0], "m")
    assert shown.page.locator("#invite").is_visible()
    shown.step("m", ["1"], ended={"1": "length"}, seats=[""] * 4)
    assert "Send a request" in shown.page.locator("#invite").inner_text()
    assert "labctl's own" in shown.page.locator("#invite").inner_text()
    shown.asks("3", "m")
    assert shown.page.locator("#invite").is_hidden()


def test_guess_begins_where_requests_are_and_says_where_none_are(shown: Shown) -> None:
    shown.head(TITLES[0], "idle", "busy")
    shown.step("idle", ["1"], ended={"1": "length"}, seats=[""] * 4)
    shown.page.click("#guess")
    shown.page.get_by_text("idle has no requests to guess about").wait_for()
    assert shown.page.locator("#reveal").is_disabled()
    shown.step("busy", ["2", "3"])
    assert shown.page.locator("#quizzed").input_value() == "busy"
    shown.page.get_by_text("Which requests are in the next batch?").wait_for()
    shown.page.keyboard.press("Escape")
    shown.settle()
    assert shown.page.locator("#quiz").is_hidden()
    shown.page.click("#guess")
    shown.page.focus("#prompt")
    shown.page.keyboard.press("Escape")
    shown.settle()
    assert shown.page.locator("#quiz").is_hidden()


def test_the_question_stays_in_sight(shown: Shown) -> None:
    shown.head(TITLES[0], "one", "other")
    for model in ("one", "other"):
        shown.step(model, ["1"], slots=16)
    shown.page.click("#guess")
    for size in (LAPTOP, PHONE):
        shown.page.set_viewport_size(size)
        shown.page.evaluate("scrollTo(0, 1e6)")
        shown.page.locator("#question").wait_for()
        box = shown.page.locator("#question").bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= size["height"]


@pytest.mark.parametrize("keys", ["Control+Enter", "Meta+Enter"])
def test_the_prompt_is_sent_by_keyboard_and_enter_alone_is_a_new_line(shown: Shown, keys: str) -> None:
    shown.head(TITLES[0], "m")
    shown.page.fill("#prompt", "Anna")
    shown.page.focus("#prompt")
    shown.page.keyboard.press("End")
    shown.page.keyboard.press("Enter")
    assert shown.page.evaluate("window.called") == []
    shown.page.keyboard.press(keys)
    ((what, body),) = shown.page.evaluate("window.called")
    assert what == "send" and body["prompt"] == "Anna\n" and body["count"] == 1


@pytest.mark.parametrize(("slots", "blocks"), [(4, 893), (8, 0)])
def test_lanes_fill_the_window_and_do_not_reach_below_it(shown: Shown, slots: int, blocks: int) -> None:
    shown.head(TITLES[1], "m")
    kv = {"blocks": [2], "kv_blocks": blocks, "kv_blocks_used": 2} if blocks else {}
    for _ in range(3):
        shown.step("m", ["1"], slots=slots, **kv)
    box = shown.page.locator("#lanes").bounding_box()
    row = shown.page.locator(".seat").first.bounding_box()["height"]
    assert box["y"] + box["height"] <= LAPTOP["height"]
    assert row > 24 and (row == 44 or box["y"] + box["height"] > LAPTOP["height"] - 2 * slots - 40)


def test_a_cancelled_request_that_is_still_computed_is_said_to_be(shown: Shown) -> None:
    shown.head(TITLES[1], "m")
    shown.step("m", ["5"], t=2e9)
    shown.asks("5", "m", state="cancelled", at=1.0)
    assert shown.page.locator(".request small").inner_text().startswith("cancelled, but the model goes on")
    shown.step("m", ["5"], t=2e9 + 1, ended={"5": "cancelled"}, seats=[""] * 4)
    assert shown.page.locator(".request small").inner_text() == "cancelled"


def test_a_preempted_request_is_said_to_wait_until_it_runs_again(shown: Shown) -> None:
    shown.head(TITLES[1], "m")
    shown.step("m", ["4", "5"], t=2e9)
    shown.asks("5", "m", at=1.0)
    state = shown.page.locator(".request small")
    assert state.inner_text() == "running (answer comes whole)"
    shown.step("m", ["4"], t=2e9 + 1, waiting=["5"], queue=1, evicted=["5"])
    assert state.inner_text() == "preempted, waiting"
    shown.step("m", ["4", "5"], t=2e9 + 2)
    assert state.inner_text() == "running (answer comes whole)"
