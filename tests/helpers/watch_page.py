"""The live page as a person uses it: opened, asked, its clock stopped and moved on."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S

from labctl.pages.live.feed import Feed
from labctl.pages.live.page import document

TIMEOUT_MS = 1e3 * DEADLINE_S
LAPTOP = {"width": 1280, "height": 800}
TITLE = "Lab 02: Iterative scheduling with GPT-2"


@contextmanager
def watch(stack: str, root: Path, *options: str) -> Iterator[str]:
    """``labctl watch`` for a while; where its page is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "labctl", "watch", stack, "--port", "0", *options],
        cwd=root,
        text=True,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:\d+/\S+/) ", process.stdout.readline())
        assert found, "the page is not there"
        yield found[1]
        process.terminate()
        assert process.wait(DEADLINE_S) == 143
    finally:
        process.kill()
        process.communicate()


class Visitor:
    """What a person does on the page, and sees."""

    def __init__(self, browser: Any, address: str) -> None:
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": 1280, "height": 720})
        self.page.set_default_timeout(TIMEOUT_MS)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.locator("#clock").wait_for()

    def ask(self, model: str, prompt: str, tokens: int) -> str:
        """Send one; what it is called."""
        before = set(self.names())
        self.page.select_option("#model", model)
        self.page.fill("#prompt", prompt)
        self.page.fill("#tokens", str(tokens))
        self.page.click("#one")
        self.until(f"watching.store.asked.size > {len(before)}")
        (name,) = set(self.names()) - before
        return name

    def names(self) -> list[str]:
        found: list[str] = self.page.evaluate("[...watching.store.asked.values()].map((ask) => ask.name)")
        return found

    def until(self, expression: str) -> None:
        """Wait for something on the page. Not with ``wait_for_function``: the page lets nobody evaluate texts in it."""
        deadline = time.monotonic() + TIMEOUT_MS / 1e3
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            self.page.wait_for_timeout(20)

    def pause(self) -> None:
        self.page.click("#pause")
        self.page.locator("#pause[aria-pressed=true]").wait_for()

    def resume(self) -> None:
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.locator("#pause[aria-pressed=false]").wait_for()

    def step(self, button: str = "#step") -> None:
        with self.page.expect_response(lambda answer: answer.url.endswith("/clock")):
            self.page.click(button)

    def lane(self, model: str) -> Any:
        return self.page.locator(f".lane[data-lane='{model}']")

    def seated(self, model: str) -> list[str]:
        return [seat.get_attribute("data-request") for seat in self.lane(model).locator(".seat:not(.empty)").all()]

    def batch(self, model: str, step: int) -> int:
        """The batch that the page shows, once it shows that step."""
        facts = self.lane(model).locator(f".facts[data-step='{step}']")
        facts.wait_for()
        return int(facts.get_attribute("data-batch"))

    def over(self, name: str) -> None:
        self.page.locator(f".request:has(b[title='id {name}']):not([data-state='sent'])").wait_for()


class Shown:
    """The page without a server: told what one would tell it, and what it calls is written down."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.feed = Feed()
        self.n = 0
        page.evaluate("""() => {
            window.called = [];
            watching.send = async (what, body) => window.called.push([what, body]);
        }""")
        self.take([{"k": "clock", "paused": False, "slow": 1, "until": None}])

    def take(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.page.evaluate("(events) => watching.take(events)", events)
        self.settle()

    def settle(self) -> None:
        """Let it draw what has changed, until nothing does any more."""
        self.page.evaluate("""() => new Promise((settled, failed) => {
            setTimeout(() => failed(new Error("the page has not come to rest for two minutes")), 120000);
            watching.stale = true;
            const drawn = () => watching.stale ? requestAnimationFrame(drawn) : settled();
            requestAnimationFrame(drawn);
        })""")

    def head(self, title: str = TITLE, *models: str) -> None:
        head = {"k": "head", "title": title, "stack": "s", "models": list(models), "send": list(models), "into": {}}
        self.take([head])

    def step(self, model: str, ids: list[str], slots: int = 4, **more: Any) -> None:
        self.take(self.feed.events([self.line(model, ids, slots, **more)]))

    def line(self, model: str, ids: list[str], slots: int = 4, **more: Any) -> dict[str, Any]:
        """The next step as a line of the log."""
        self.n += 1
        return {
            "n": self.n,
            "t": 100 + self.n / 10,
            "dur": 0.05,
            "model": model,
            "instance": "0",
            "kind": "step",
            "ids": ids,
            "slots": slots,
            "seats": [*ids, *[""] * (slots - len(ids))],
            **more,
        }

    def asks(self, name: str, model: str, **more: Any) -> None:
        called = self.feed.names[name]
        event = {
            "k": "ask",
            "n": name,
            "name": name,
            "called": called,
            "model": model,
            "prompt": "I have",
            "at": 1e9,
            "state": "sent",
        }
        self.take([{**event, **more}])

    def facts(self, model: str) -> str:
        return str(self.page.locator(f".lane[data-lane='{model}'] .facts").inner_text())

    def cut(self, selector: str) -> list[str]:
        """The texts of those that are wider than they are shown, or that have more than a line."""
        return list(
            self.page.eval_on_selector_all(
                selector,
                """(all) => all.filter((one) =>
            one.scrollWidth > one.clientWidth + 1 || one.getClientRects().length > 1).map((one) => one.textContent)""",
            )
        )


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Shown]:
    (tmp_path / "page.html").write_text(document(), encoding="utf-8")
    page = browser.new_page(viewport=LAPTOP, bypass_csp=True)
    page.goto((tmp_path / "page.html").as_uri())
    yield Shown(page)
    page.close()
