"""Photograph panels of the live page of each lab: scripts/watch_images.py [NAME...]

Each docs/images/NAME.png (or NAME.gif, with a frame for each step) is `labctl watch` on a stack that is brought up for
it, with real requests, its clock stopped where there is something to see. Needs a Chromium on this machine.
"""

import io
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
LABCTL = (sys.executable, "-m", "labctl")
# `labctl` with arguments, whose requests are numbered from 1: short names for the picture.
WATCH = """
import itertools, sys
from labctl.cli.main import main
from labkit.evidence import records
records._numbers = itertools.count(1)
sys.exit(main(sys.argv[1:]))
"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCREEN = (1180, 1400)  # the panels are about 880 wide, and all of them in view
SHARP = 2  # pixels of a picture for one of the page
MARGIN = 6  # around the panels
SETTLED_MS = 700
FRAME_MS, LONG_MS = 220, 2200  # of a film: a frame, and one whose caption has changed
CAPTION = 34  # pixels, below the panels
FONT = "DejaVuSans.ttf"  # matplotlib brings it


@dataclass(frozen=True)
class Picture:
    """One picture: the stack, its settings, what is done before it is taken, and the models whose panels it shows."""

    stack: str
    settings: tuple[str, ...]
    act: Callable[["Visitor"], None]
    models: tuple[str, ...]


class Visitor:
    """What a person does on the page."""

    def __init__(self, page: Page, models: tuple[str, ...]) -> None:
        self.page = page
        self.models = models
        self.frames: list[tuple[bytes, str]] = []

    def photograph(self) -> bytes:
        """The panels of the models, cropped to them."""
        boxes = [self.page.locator(".lane", has_text=model).first.bounding_box() for model in self.models]
        found = [box for box in boxes if box]
        left, top = min(box["x"] for box in found), min(box["y"] for box in found)
        right = max(box["x"] + box["width"] for box in found)
        bottom = max(box["y"] + box["height"] for box in found)
        clip: Any = {
            "x": left - MARGIN,
            "y": top - MARGIN,
            "width": right - left + 2 * MARGIN,
            "height": bottom - top + 2 * MARGIN,
        }
        return self.page.screenshot(clip=clip)

    def zoom(self, times: int) -> None:
        for _ in range(times):
            self.page.click("#in")
        self.page.wait_for_timeout(SETTLED_MS)

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

    def film(self, steps: int, caption: str) -> None:
        """A frame after each of ``steps`` steps, all with one caption."""
        for _ in range(steps):
            self.step(0, 1)
            self.frames.append((self.photograph(), caption))


def sequences(visitor: Visitor) -> None:
    visitor.pause()
    for number in range(1, 9):
        visitor.ask("ensemble_pipeline", ("I have lived in", "Anna writes")[number % 2], 10)
    visitor.step(2, 6)


def newcomers(visitor: Visitor) -> None:
    visitor.pause()
    for model in ("simple-gpt2", "iterative-gpt2"):
        visitor.ask(model, "I have lived in", 30)
    visitor.step(1, 2)
    for model in ("simple-gpt2", "iterative-gpt2"):
        visitor.ask(model, "Anna writes", 12)
    visitor.step(1, 1)
    visitor.zoom(1)


def stepped(visitor: Visitor) -> None:
    visitor.pause()
    for model in ("simple-gpt2", "iterative-gpt2"):
        visitor.ask(model, "I have lived in", 16)
    visitor.film(5, "One request each. One step is one token.")
    for model in ("simple-gpt2", "iterative-gpt2"):
        visitor.ask(model, "Anna writes", 8)
    visitor.film(1, "A second prompt arrives at each model. This step was formed before.")
    visitor.film(2, "iterative-gpt2: it joins at the next token. simple-gpt2: it waits.")
    visitor.film(9, "simple-gpt2 computes the first answer to its end.")
    visitor.film(6, "Only then does the second one begin.")


def engine(visitor: Visitor) -> None:
    visitor.pause()
    for number, tokens in enumerate((10, 16, 22, 30)):
        for model in ("ensemble", "llama-python-batched"):
            visitor.ask(model, ("The capital of France is", "Once upon a time")[number % 2], tokens)
    visitor.step(2)
    visitor.zoom(1)


def gathering(visitor: Visitor) -> None:
    visitor.pause()
    visitor.ask("ensemble", "def add(a, b):", 18)
    visitor.step(1)
    for prompt in ("def maximum(values):", "class Stack:", "for i in range(", "def is_even(n):"):
        visitor.ask("ensemble", prompt, 16)
    visitor.step(1, 8)


def policy(visitor: Visitor) -> None:
    visitor.pause()
    for number, tokens in enumerate((6, 12, 40, 48, 20, 20)):
        visitor.ask("ensemble", ("Once upon a time there was", "The frog works at night and")[number % 2], tokens)
    visitor.step(3)


def evicted(visitor: Visitor) -> None:
    visitor.pause()
    for number, tokens in enumerate((100, 100, 100, 100, 40)):
        visitor.ask("ensemble", ("Once upon a time there was", "The frog works at night and")[number % 2], tokens)
    visitor.step(6, 8)


def chunked(visitor: Visitor) -> None:
    visitor.pause()
    visitor.ask("ensemble", "Once upon a time there was", 60)
    visitor.step(1, 4)
    visitor.ask("ensemble", "The frog works at night and sleeps by day. " * 30, 20)
    visitor.step(1, 2)
    visitor.zoom(1)


def seated(visitor: Visitor) -> None:
    visitor.pause()
    for tokens in (8, 14, 20, 26, 12, 12):
        visitor.ask("streams", "one word after the other", tokens)
    visitor.step(1, 6)
    visitor.page.locator(".lane canvas.strip").first.wait_for()


SMALL = ("max_num_sequences=4",)
BLOCKS = "max_tokens_in_paged_kv_cache=1024"  # 32 blocks: few enough to see each
TIGHT = (*SMALL, "batch_scheduler_policy=max_utilization", "max_tokens_in_paged_kv_cache=256")
CHUNKED = (
    *SMALL,
    "max_tokens_in_paged_kv_cache=2048",
    "enable_chunked_context=true",
    "max_num_tokens=64",
    "decoupled_mode=true",
    "model=shipped:tiny-llama",
)
BOTH, ENGINE = ("simple-gpt2", "iterative-gpt2"), ("tensorrt_llm",)
PICTURES = {
    "watch-lab01": Picture(
        "sequence-batcher", ("max_sequence_idle_microseconds=3600000000",), sequences, ("tokenizer", "generator_onnx")
    ),
    "watch-lab02": Picture("iterative", ("max_batch_size=2",), newcomers, BOTH),
    "watch-lab02-stepped": Picture("iterative", ("max_batch_size=2",), stepped, BOTH),
    "watch-lab03": Picture("llama", (*SMALL, BLOCKS), engine, ("tensorrt_llm", "llama-python-batched")),
    "watch-lab04": Picture("codegen", ("max_batch_size=8",), gathering, ("codegen-350M-mono-gptj",)),
    "watch-lab05-static": Picture("static-batching", (*SMALL, BLOCKS), policy, ENGINE),
    "watch-lab05-inflight": Picture("inflight-batching", TIGHT, evicted, ENGINE),
    "watch-lab06": Picture("modern", CHUNKED, chunked, ENGINE),
    "watch-lab07": Picture("scaled", (), seated, ("streams",)),
}


@contextmanager
def watched(stack: str, settings: tuple[str, ...]) -> Iterator[str]:
    """The stack up and its page served, for a while; the page's address."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    subprocess.run([*LABCTL, "up", stack, "--runtime", "local", "--ports", "auto", *chosen], check=True, cwd=ROOT)
    try:
        watch = (sys.executable, "-c", WATCH, "watch", stack, "--port", "0")
        server = subprocess.Popen(watch, cwd=ROOT, text=True, stdout=subprocess.PIPE)
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
    width, height = SCREEN
    page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=SHARP, bypass_csp=True)
    try:
        page.goto(address)
        page.locator("#clock").wait_for()
        visitor = Visitor(page, picture.models)
        picture.act(visitor)
        if visitor.frames:
            save_film(visitor.frames, path.with_suffix(".gif"))
        else:
            path.write_bytes(visitor.photograph())
        page.click("#pause")  # on it goes
        page.wait_for_function(
            "[...watching.store.asked.values()].every((ask) => ask.state !== 'sent')", timeout=120_000
        )
    finally:
        page.close()


def save_film(frames: list[tuple[bytes, str]], path: Path) -> None:
    """An animated picture, small enough for a README: half the pixels, few colours, a caption below each frame.

    One palette serves all frames, so that a request keeps its colour.
    """
    import matplotlib

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / FONT), 17)
    pictures = [Image.open(io.BytesIO(frame)).convert("RGB") for frame, _ in frames]
    width, height = (max(sizes) // SHARP for sizes in zip(*(picture.size for picture in pictures), strict=True))
    high = height + CAPTION
    strip = Image.new("RGB", (width, high * len(frames)), "white")
    write = ImageDraw.Draw(strip)
    for number, (picture, (_, caption)) in enumerate(zip(pictures, frames, strict=True)):
        strip.paste(picture.reduce(SHARP), (0, high * number))
        write.text((12, high * number + height + 6), caption, font=font, fill="black")
    few = few_colours(strip)
    film = [few.crop((0, high * number, width, high * (number + 1))) for number in range(len(frames))]
    captions = [caption for _, caption in frames]
    changed = [before != after for before, after in itertools.pairwise(captions)]
    lengths = [LONG_MS if late else FRAME_MS for late in (*changed, True)]
    film[0].save(path, save_all=True, append_images=film[1:], duration=lengths, loop=0, optimize=False)


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
