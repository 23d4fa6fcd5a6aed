"""The chat page in a real browser: a person types, the answer comes, the dials change it, errors are told in words."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from lab_server import LabServer
from machinery import labctl, taken_down
from own_stack import server_of, up
from waiting import DEADLINE_S

pytestmark = pytest.mark.night

TIMEOUT_MS = 180_000
PROMPT = "def add(a, b):"
CODEGEN = pytest.mark.xdist_group("codegen")  # they share its server with the tests of lab 04
# Collects every text that the last answer had on its way.
WATCH = """() => {
    window.grown = [];
    new MutationObserver(() => {
        const text = [...document.querySelectorAll("#texts .bot.message code")].at(-1)?.innerText.trimEnd();
        if (text && text !== window.grown.at(-1)) window.grown.push(text);
    }).observe(document.querySelector("#texts"), {subtree: true, childList: true, characterData: true});
}"""


@contextmanager
def chat(stack: str, root: Path) -> Iterator[str]:
    """``labctl chat`` for a while; where its page is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "labctl", "chat", stack, "--port", "0"],
        cwd=root,
        text=True,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        found = re.match(rf"{stack}: (http://127\.0\.0\.1:\d+) ", process.stdout.readline())
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
        self.asked: list[str] = []  # every address that the page wanted
        self.page = browser.new_page()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address, timeout=TIMEOUT_MS)
        self.page.locator("#prompt textarea").wait_for(timeout=TIMEOUT_MS)
        self.page.get_by_role("button", name="Model and sampling").click()

    def set(self, dial: str, value: float) -> None:
        field = self.page.locator(f"#{dial} input[type=number]")
        field.fill(str(value))
        field.press("Tab")

    def ask(self, prompt: str) -> None:
        field = self.page.locator("#prompt textarea")
        field.fill(prompt)
        field.press("Enter")

    def answer(self, prompt: str) -> tuple[str, str]:
        """Ask, and wait for the whole answer: its text, and what is said of its speed."""
        before = self.answers.count()
        self.ask(prompt)
        whole = self.answers.nth(before)
        speed = whole.get_by_text("tokens/s")
        speed.wait_for(timeout=TIMEOUT_MS)
        return str(whole.locator("code").inner_text()).rstrip(), speed.inner_text()

    @property
    def answers(self) -> Any:
        return self.page.locator("#texts .bot.message")


@pytest.fixture(scope="module")
def code_page(browser: Any, lab_server: Callable[..., LabServer], checkout: Path) -> Iterator[Visitor]:
    lab_server("codegen")
    with chat("codegen", checkout) as address:
        visitor = Visitor(browser, address)
        yield visitor
        visitor.page.close()


@CODEGEN
def test_a_prompt_is_continued_and_the_speed_is_told(code_page: Visitor) -> None:
    text, speed = code_page.answer(PROMPT)
    assert text.startswith(PROMPT)
    assert "return a + b" in text
    assert "<|endoftext|>" not in text
    assert re.search(r"\d+ tokens in [\d.]+ s, [\d.]+ tokens/s", speed)


@CODEGEN
def test_the_dials_change_the_answer_and_a_seed_repeats_it(code_page: Visitor) -> None:
    code_page.set("tokens", 40)
    code_page.set("temperature", 1.8)
    code_page.set("seed", 5)
    sampled = [code_page.answer("def f")[0] for _ in range(2)]
    assert sampled[0] == sampled[1]
    code_page.set("seed", 6)
    assert code_page.answer("def f")[0] != sampled[0]


@CODEGEN
def test_a_refusal_is_told_in_words_and_the_page_goes_on(code_page: Visitor) -> None:
    code_page.ask("x y " * 3000)
    code_page.page.get_by_text("the model sees 1,024, the answer included").wait_for(timeout=TIMEOUT_MS)
    assert code_page.answer(PROMPT)[0].startswith(PROMPT)


@pytest.fixture(scope="module")
def streaming_root(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout with a stack up whose model streams, and whose server a test may end."""
    root = tmp_path_factory.mktemp("streaming")
    for item in checkout.iterdir():
        if item.is_symlink():
            (root / item.name).symlink_to(item.readlink())
    try:
        up(root)
        yield root
    finally:
        taken_down(root)


@pytest.fixture(scope="module")
def streaming_page(browser: Any, streaming_root: Path) -> Iterator[Visitor]:
    with chat("iterative", streaming_root) as address:
        visitor = Visitor(browser, address)
        yield visitor
        visitor.page.close()


def test_where_the_model_streams_the_text_grows_until_it_is_whole(
    streaming_page: Visitor, streaming_root: Path
) -> None:
    streaming_page.set("tokens", 400)
    streaming_page.page.evaluate(WATCH)
    labctl("clock", "iterative", "slow", "20", root=streaming_root)  # the page shows one text before it has the next
    whole, speed = streaming_page.answer("I have lived in")
    labctl("clock", "iterative", "run", root=streaming_root)
    grown = streaming_page.page.evaluate("window.grown")
    assert len(grown) > 3
    assert grown[-1] == whole
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(grown))
    assert re.search(r"first token after \d+ ms; 400 tokens in [\d.]+ s, [\d.]+ tokens/s", speed)


def test_the_page_asks_no_other_server_for_anything(streaming_page: Visitor) -> None:
    asked = {urlsplit(url).hostname for url in streaming_page.asked if url.startswith(("http", "ws"))}
    assert asked == {"127.0.0.1"}


def test_a_server_that_has_gone_is_told_in_words(streaming_page: Visitor, streaming_root: Path) -> None:
    server = server_of(streaming_root)
    assert server
    server.kill()
    server.wait(DEADLINE_S)
    streaming_page.ask("I have lived in")
    streaming_page.page.get_by_text(re.compile(r"the server at [\d.:]+ does not answer")).wait_for(timeout=TIMEOUT_MS)
