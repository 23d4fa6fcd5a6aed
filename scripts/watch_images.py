"""Photograph the live page of each lab: scripts/watch_images.py [NAME...]

Each docs/images/NAME.png (or NAME.gif, with a frame for each step) is `labctl watch` on a stack that is brought up for
it, with real requests, its clock stopped where there is something to see. Needs a Chromium on this machine.
"""

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
LABCTL = (sys.executable, "-m", "labctl")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE = (1280, 720)
SETTLED_MS = 700
FILM, FRAME_MS = (960, 540), 500


@dataclass(frozen=True)
class Picture:
    """One picture: the stack, its settings, what is done before it is taken, and how large the page is."""

    stack: str
    settings: tuple[str, ...]
    act: Callable[["Visitor"], None]
    size: tuple[int, int] = WIDE


class Visitor:
    """What a person does on the page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[bytes] = []

    def pause(self) -> None:
        self.page.click("#pause")
        self.page.locator("#pause[aria-pressed=true]").wait_for()

    def ask(self, model: str, prompt: str, tokens: int) -> None:
        before = self.page.locator(".request").count()
        self.page.select_option("#model", model)
        self.page.fill("#prompt", prompt)
        self.page.fill("#tokens", str(tokens))
        self.page.click("#one")
        self.page.locator(".request").nth(before).wait_for()
        self.page.wait_for_timeout(150)  # so that they come in this order

    def step(self, tens: int, ones: int = 0) -> None:
        for button in ["#ten"] * tens + ["#step"] * ones:
            with self.page.expect_response(lambda answer: answer.url.endswith("/clock"), timeout=60_000):
                self.page.click(button)
        self.page.wait_for_timeout(SETTLED_MS)

    def film(self, steps: int) -> None:
        """A frame after each of so many steps."""
        for _ in range(steps):
            self.step(0, 1)
            self.frames.append(self.page.screenshot())

    def point(self, lane: int, seat: int, steps_ago: int) -> None:
        """Hover over a mark."""
        box = self.page.locator(".lane canvas.strip").nth(lane).bounding_box()
        assert box
        height = self.page.locator(".lane").nth(lane).locator(".seat").first.bounding_box()
        assert height
        x = box["x"] + box["width"] - 14 * steps_ago + 5
        self.page.mouse.move(x, box["y"] + height["height"] * (seat + 0.5))
        self.page.wait_for_timeout(SETTLED_MS)


def sequences(visitor: Visitor) -> None:
    visitor.pause()
    for number in range(1, 9):
        visitor.ask("ensemble_pipeline", ("I have lived in", "Anna writes")[number % 2], 10)
    visitor.step(2, 6)
    visitor.point(0, 0, 3)


def newcomers(visitor: Visitor) -> None:
    visitor.pause()
    for model in ("simple-gpt2", "iterative-gpt2"):
        visitor.ask(model, "I have lived in", 30)
    visitor.step(1, 2)
    for model in ("simple-gpt2", "iterative-gpt2"):
        visitor.ask(model, "Anna writes", 12)
    visitor.step(1, 1)
    visitor.point(1, 1, 6)


def stepped(visitor: Visitor) -> None:
    visitor.pause()
    for model in ("simple-gpt2", "iterative-gpt2"):
        visitor.ask(model, "I have lived in", 18)
    visitor.film(6)
    for model in ("simple-gpt2", "iterative-gpt2"):
        visitor.ask(model, "Anna writes", 12)
    visitor.film(24)


def engine(visitor: Visitor) -> None:
    visitor.pause()
    for number, tokens in enumerate((10, 16, 22, 30)):
        for model in ("ensemble", "llama-python-batched"):
            visitor.ask(model, ("The capital of France is", "Once upon a time")[number % 2], tokens)
    visitor.step(2)


def gathering(visitor: Visitor) -> None:
    visitor.pause()
    visitor.ask("ensemble", "def add(a, b):", 24)
    visitor.step(1)
    for prompt in ("def maximum(values):", "class Stack:", "for i in range(", "def is_even(n):"):
        visitor.ask("ensemble", prompt, 16)
    visitor.step(2, 4)


def policy(visitor: Visitor) -> None:
    visitor.pause()
    for number, tokens in enumerate((6, 12, 40, 48, 20, 20)):
        visitor.ask("ensemble", ("Once upon a time there was", "The frog works at night and")[number % 2], tokens)
    visitor.step(3)


def evicted(visitor: Visitor) -> None:
    visitor.pause()
    for number, tokens in enumerate((100, 100, 100, 100, 40)):
        visitor.ask("ensemble", ("Once upon a time there was", "The frog works at night and")[number % 2], tokens)
    visitor.step(11)
    visitor.page.click("#fit")
    visitor.page.wait_for_timeout(SETTLED_MS)


def chunked(visitor: Visitor) -> None:
    visitor.pause()
    visitor.ask("ensemble", "Once upon a time there was", 40)
    visitor.step(1, 4)
    visitor.ask("ensemble", "The frog works at night and sleeps by day. " * 30, 20)
    visitor.step(1, 2)
    visitor.point(0, 1, 6)


def seated(visitor: Visitor) -> None:
    visitor.pause()
    for tokens in (8, 14, 20, 26, 12, 12):
        visitor.ask("streams", "one word after the other", tokens)
    visitor.step(1, 6)
    visitor.page.locator(".lane canvas.strip").first.wait_for()


SMALL = ("max_num_sequences=4",)
TIGHT = (*SMALL, "batch_scheduler_policy=max_utilization", "max_tokens_in_paged_kv_cache=256")
CHUNKED = (
    *SMALL,
    "max_tokens_in_paged_kv_cache=2048",
    "enable_chunked_context=true",
    "max_num_tokens=64",
    "decoupled_mode=true",
    "model=shipped:tiny-llama",
)
PICTURES = {
    "watch-lab01": Picture("sequence-batcher", ("max_sequence_idle_microseconds=3600000000",), sequences),
    "watch-lab02": Picture("iterative", ("max_batch_size=2",), newcomers),
    "watch-lab02-stepped": Picture("iterative", (), stepped),
    "watch-lab03": Picture("llama", ("max_num_sequences=4",), engine),
    "watch-lab04": Picture("codegen", (), gathering),
    "watch-lab05-static": Picture("static-batching", SMALL, policy),
    "watch-lab05-inflight": Picture("inflight-batching", TIGHT, evicted),
    "watch-lab06": Picture("modern", CHUNKED, chunked),
    "watch-lab07": Picture("scaled", (), seated),
}


@contextmanager
def watched(stack: str, settings: tuple[str, ...]) -> Iterator[str]:
    """The stack up and its page served, for a while; the page's address."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    subprocess.run([*LABCTL, "up", stack, "--runtime", "local", "--ports", "auto", *chosen], check=True, cwd=ROOT)
    try:
        server = subprocess.Popen([*LABCTL, "watch", stack, "--port", "0"], cwd=ROOT, text=True, stdout=subprocess.PIPE)
        try:
            assert server.stdout
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, "the page is not there"
            yield found[0]
        finally:
            server.terminate()
            server.communicate()
    finally:
        subprocess.run([*LABCTL, "down", stack], check=True, cwd=ROOT)


def take(browser: Any, address: str, picture: Picture, path: Path) -> None:
    width, height = picture.size
    page = browser.new_page(viewport={"width": width, "height": height}, bypass_csp=True)
    try:
        page.goto(address)
        page.locator("#clock").wait_for()
        visitor = Visitor(page)
        picture.act(visitor)
        if visitor.frames:
            save_film(visitor.frames, path.with_suffix(".gif"))
        else:
            page.screenshot(path=path)
        page.click("#pause")  # on it goes
        page.wait_for_function(
            "[...watching.store.asked.values()].every((ask) => ask.state !== 'sent')", timeout=120_000
        )
    finally:
        page.close()


def save_film(frames: list[bytes], path: Path) -> None:
    """An animated picture, small enough for a README: fewer pixels, few colours."""
    pictures = [Image.open(io.BytesIO(frame)).convert("RGB").resize(FILM, Image.Resampling.LANCZOS) for frame in frames]
    few = [few_colours(picture) for picture in pictures]
    few[0].save(path, save_all=True, append_images=few[1:], duration=FRAME_MS, loop=0, optimize=True)


def few_colours(picture: Image.Image) -> Image.Image:
    """The picture with a palette in which a colour that covers few pixels, as a request's does at first, is kept."""
    return picture.quantize(160, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def main(names: list[str]) -> int:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        print(f"there is no {', '.join(BROWSERS)} on this machine", file=sys.stderr)
        return 1
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        for name in names or PICTURES:
            picture = PICTURES[name]
            with watched(picture.stack, picture.settings) as address:
                take(browser, address, picture, ROOT / "docs" / "images" / f"{name}.png")
            print(name)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
