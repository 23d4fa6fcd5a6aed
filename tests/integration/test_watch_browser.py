"""The live page in a real browser, as a person uses it; what it shows is what the step log says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_server import LabServer
from machinery import labctl
from watch_page import Visitor, watch

from labctl.pages.live import replay
from labctl.pages.live.page import document

SIMPLE, ITERATIVE = "simple-gpt2", "iterative-gpt2"
EVIL = "<script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
ITERATIVE_SERVER = pytest.mark.xdist_group("iterative")
pytestmark = ITERATIVE_SERVER


@pytest.fixture(scope="module")
def server(lab_server: Callable[..., LabServer]) -> LabServer:
    return lab_server("iterative")


@pytest.fixture
def visitor(browser: Any, server: LabServer, checkout: Path) -> Iterator[Visitor]:
    with watch("iterative", checkout) as address:
        visitor = Visitor(browser, address)
        try:
            yield visitor
        finally:
            labctl("clock", "iterative", "run", root=checkout)
            visitor.page.close()


def steps(server: LabServer, model: str) -> list[dict[str, Any]]:
    """What the model wrote into its log, to the end of a line."""
    texts = [path.read_text() for path in server.run_dir.glob(f"steps-{model}-*.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if line["kind"] == "step"]


def held(visitor: Visitor, model: str, name: str) -> None:
    """Wait until a clock that stands still holds this request."""
    visitor.lane(model).locator(f".held [title$='id {name}']").wait_for()


def test_a_request_is_seen_to_arrive_grow_and_leave(visitor: Visitor, server: LabServer) -> None:
    visitor.pause()
    name = visitor.ask(ITERATIVE, "I have lived in", 30)
    held(visitor, ITERATIVE, name)
    visitor.step("#ten")
    visitor.lane(ITERATIVE).locator(f".seat[data-request='{name}']").wait_for()
    visitor.resume()
    visitor.over(name)
    visitor.until(f"!document.querySelector('.lane[data-lane={ITERATIVE}] .seat:not(.empty)')")
    own = [step for step in steps(server, ITERATIVE) if name in step["ids"]]
    assert len(own) == 30
    text = "".join(step["texts"][step["ids"].index(name)] for step in own)
    assert visitor.page.locator(f".request:has(b[title='id {name}']) p").inner_text() == f"I have lived in{text}"


def test_a_newcomer_joins_at_the_step_at_which_the_log_says_so(visitor: Visitor, server: LabServer) -> None:
    visitor.pause()
    first = visitor.ask(ITERATIVE, "I have lived in", 40)
    held(visitor, ITERATIVE, first)
    visitor.step()
    visitor.lane(ITERATIVE).locator(f".seat[data-request='{first}']").wait_for()
    second = visitor.ask(ITERATIVE, "Anna writes", 40)
    for _ in range(38):  # it comes when Triton has it, at the latest before the first has its last token
        visitor.step()
        last = steps(server, ITERATIVE)[-1]
        assert visitor.batch(ITERATIVE, last["n"]) == last["batch"]
        if second in last["ids"]:
            break
    assert {*last["ids"]} == {first, second}
    # Out of step at first, it may have got its seat a step before its first token.
    assert second in [id for step in steps(server, ITERATIVE) for id in step.get("joined", [])]
    assert visitor.seated(ITERATIVE) == [first, second]
    visitor.resume()
    visitor.over(first)
    visitor.over(second)


def test_with_the_simple_model_the_newcomer_waits_in_tritons_queue(visitor: Visitor, server: LabServer) -> None:
    visitor.pause()
    first = visitor.ask(SIMPLE, "I have lived in", 25)
    held(visitor, SIMPLE, first)
    visitor.step()
    second = visitor.ask(SIMPLE, "Anna writes", 5)
    visitor.step("#ten")
    visitor.lane(SIMPLE).locator(f".chip[data-request='{second}']").get_by_text("in Triton's queue").wait_for()
    assert [step["ids"] for step in steps(server, SIMPLE)[-5:]] == [[first]] * 5
    visitor.resume()
    visitor.over(second)
    together = [step for step in steps(server, SIMPLE) if {first, second} <= set(step["ids"])]
    assert together == []


def test_what_is_sent_and_what_comes_back_is_text_and_never_html(visitor: Visitor) -> None:
    name = visitor.ask(ITERATIVE, EVIL, 5)
    visitor.over(name)
    assert visitor.page.locator(f".request:has(b[title='id {name}']) p").inner_text().startswith(EVIL)
    assert visitor.page.evaluate("window.evil") is None
    assert visitor.page.locator("#lanes script, #lanes img, aside img").count() == 0


def test_a_request_is_cancelled_from_the_page(visitor: Visitor, server: LabServer) -> None:
    visitor.pause()
    name = visitor.ask(SIMPLE, "I have lived in", 400)
    held(visitor, SIMPLE, name)
    visitor.step()
    visitor.lane(SIMPLE).locator(f".seat[data-request='{name}']").wait_for()
    visitor.page.locator(f".request:has(b[title='id {name}'])").get_by_role("button", name="Cancel").click()
    visitor.page.locator(f".request[data-state='cancelled']:has(b[title='id {name}'])").wait_for()
    visitor.resume()
    visitor.until(f"!document.querySelector('.lane[data-lane={SIMPLE}] .seat:not(.empty)')")
    assert len([step for step in steps(server, SIMPLE) if name in step["ids"]]) < 400


def test_a_guess_is_judged_by_the_batch_that_the_server_makes(visitor: Visitor, server: LabServer) -> None:
    visitor.pause()
    first = visitor.ask(ITERATIVE, "I have lived in", 20)
    visitor.lane(ITERATIVE).locator(f".seat[data-request='{first}']").wait_for()
    visitor.page.click("#guess")
    visitor.page.select_option("#quizzed", ITERATIVE)
    assert visitor.lane(ITERATIVE).locator(".held").is_hidden()
    visitor.page.click("#reveal")  # nobody: wrong
    visitor.page.get_by_text("0 right of 1").wait_for()
    visitor.lane(ITERATIVE).locator(f".seat[data-request='{first}']").click()
    visitor.page.click("#reveal")
    visitor.page.get_by_text("1 right of 2").wait_for()
    assert steps(server, ITERATIVE)[-1]["ids"] == [first]
    visitor.resume()
    visitor.over(first)


def test_three_pages_show_the_same_and_nobody_else_is_asked(visitor: Visitor, browser: Any) -> None:
    others = [Visitor(browser, visitor.page.url) for _ in range(2)]
    name = visitor.ask(ITERATIVE, "I have lived in", 12)
    for one in (visitor, *others):
        one.over(name)
        assert one.page.locator(f".request:has(b[title='id {name}']) p").inner_text().startswith("I have lived in")
    assert {re.sub(r"^\w+://([^/:]+).*", r"\1", url) for url in visitor.asked} == {"127.0.0.1"}
    for one in others:
        one.page.close()


def test_the_page_says_when_a_pause_ends_by_itself(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(document(), encoding="utf-8")
    page = browser.new_page(bypass_csp=True)
    page.goto((tmp_path / "page.html").as_uri())

    def said(left: str) -> str:
        page.evaluate(f"""() => {{
            watching.take([{{ k: "clock", paused: true, slow: 1, until: {left} }}]);
            watching.broken = "";
            watching.panels();
        }}""")
        return str(page.locator("#state").inner_text())

    assert said("null") == "paused"
    assert said("Date.now() / 1e3 + 601").startswith("paused, for up to 10 min")
    assert re.match(r"paused, goes on by itself in \d+ s", said("Date.now() / 1e3 + 50"))
    assert page.locator("#state.alarm").count() == 1
    page.close()


def test_a_timeline_opens_without_a_network_and_is_stepped(browser: Any, server: LabServer, tmp_path: Path) -> None:
    rows = steps(server, ITERATIVE)[-20:]  # it plays in its own time: not the server's whole life
    (tmp_path / "steps-only.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = replay.write_timeline_page(tmp_path)
    assert path
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    facts = page.locator(".facts")
    assert facts.get_attribute("data-step") == str(rows[0]["n"])
    page.click("#forth")
    page.locator(f".facts[data-step='{rows[1]['n']}']").wait_for()
    page.click("#back")
    page.locator(f".facts[data-step='{rows[0]['n']}']").wait_for()
    page.select_option("#speed", "64")
    page.click("#play")
    page.locator(f".facts[data-step='{rows[-1]['n']}']").wait_for()
    assert asked == [path.as_uri()]
    context.close()
