"""The live page in Chromium: how far it is behind the step log, its frames, and how fast a recording opens."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labctl.clock import Clock
from labctl.pages.live import replay
from labctl.pages.live.hub import Hub
from labctl.pages.live.page import document
from labctl.pages.live.server import WatchServer
from labkit.errors import LabError
from labkit.tables import format_table

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
RATE, REQUESTS, SECONDS = 100, 64, 10.0
STEPS, SEATS, OPENINGS = 100_000, 8, 3
LAG_MS, OPEN_S = 250.0, 3.0
FRAMES = """(seconds) => new Promise((done) => {
    const times = [];
    const begun = performance.now();
    let before = begun;
    const frame = (at) => {
        times.push(at - before);
        before = at;
        if (at - begun < seconds * 1e3) requestAnimationFrame(frame); else done(times.slice(1));
    };
    requestAnimationFrame(frame);
})"""
SCROLL = """(seconds) => new Promise((done) => {
    const times = [], view = watching.views[0], begun = performance.now();
    let before = begun, edge = 2000;
    const frame = (at) => {
        times.push(at - before);
        before = at;
        watching.scroll(0, (edge += 40));
        if (at - begun < seconds * 1e3) requestAnimationFrame(frame); else done(times.slice(1));
    };
    view.strip.width = 6;
    requestAnimationFrame(frame);
})"""


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Both, each in a page of its own."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise LabError("there is no Chromium on this machine", code="browser-missing")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        found = {"live": live(browser), "replay": opened(browser)}
        browser.close()
    shown, replayed = found["live"], found["replay"]
    rows = [
        (f"lag, {RATE} steps/s of {REQUESTS} requests, ms", shown["lag_ms"]["p50"], shown["lag_ms"]["p99"], LAG_MS),
        ("frames meanwhile, ms", shown["frame_ms"]["p50"], shown["frame_ms"]["p99"], "-"),
        (f"a recording of {STEPS:,} steps opens, s", replayed["open_s"]["p50"], replayed["open_s"]["max"], OPEN_S),
        ("of that, its thread computes, s", replayed["busy_s"]["p50"], replayed["busy_s"]["max"], "-"),
        ("frames while it is scrolled, ms", replayed["frame_ms"]["p50"], replayed["frame_ms"]["p99"], "-"),
    ]
    print(
        format_table(
            [(n, f"{m:.1f}", f"{h:.1f}", limit) for n, m, h, limit in rows],
            ("", "median", "p99 or most", "limit"),
            right=range(1, 4),
        )
    )
    print(f"{shown['steps']} steps written, {shown['shown']} shown in the end")
    return found


def live(browser: Any) -> dict[str, Any]:
    """A log that is written at ``RATE``, and the page that follows it."""
    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(Clock(Path(folder), ("m",)), "127.0.0.1:1")
        hub.head = {"k": "head", "title": "benchmark"}
        over = threading.Event()
        writer = threading.Thread(target=write, args=(Path(folder) / "steps-m-0.jsonl", over))
        with WatchServer(document(), hub, {}).serving(0) as address:
            page = browser.new_page(viewport={"width": 1280, "height": 720}, bypass_csp=True)
            page.goto(address)
            writer.start()
            page.wait_for_function("watching.drawn.length > 50")
            frames = page.evaluate(FRAMES, SECONDS)
            over.set()
            writer.join()
            time.sleep(0.5)
            drawn = page.evaluate("watching.drawn")
            shown = page.evaluate("watching.store.lanes[0].end")
            page.close()
        epoch = time.time() - time.monotonic()
        lag = [at - (epoch + t) * 1e3 for t, at in drawn[50:]]
        written = len((Path(folder) / "steps-m-0.jsonl").read_text().splitlines())
    return {"lag_ms": spread(lag), "frame_ms": spread(frames), "steps": written, "shown": shown}


def opened(browser: Any) -> dict[str, Any]:
    """A ``timeline.html`` of ``STEPS`` steps, opened ``OPENINGS`` times: to the picture, and then scrolled."""
    with tempfile.TemporaryDirectory() as folder:
        lines = (json.dumps(line) + "\n" for line in steps(STEPS, SEATS, 0.0))
        (Path(folder) / "steps-a.jsonl").write_text("".join(lines))
        path = replay.write_timeline_page(Path(folder))
        assert path
        took, busy, frames = [], [], []
        for _ in range(OPENINGS):
            page = browser.new_page(viewport={"width": 1280, "height": 720}, bypass_csp=True)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            began = time.monotonic()
            page.goto(path.as_uri(), wait_until="commit")
            page.wait_for_function("window.watching && watching.drawn.length > 0", timeout=60_000)
            took.append(time.monotonic() - began)
            metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
            busy.append(metrics["TaskDuration"])
            frames += page.evaluate(SCROLL, 3.0)
            page.close()
        size = path.stat().st_size
    return {"open_s": spread(took), "busy_s": spread(busy), "frame_ms": spread(frames), "bytes": size}


def write(path: Path, over: threading.Event) -> None:
    """Lines at ``RATE`` until it is over, each with the time at which it was written."""
    began = time.monotonic()
    with path.open("a", buffering=1) as stream:
        for number, line in enumerate(steps(10**9, REQUESTS, began)):
            while (left := began + number / RATE - time.monotonic()) > 0:
                time.sleep(left)
            if over.is_set():
                return
            stream.write(json.dumps({**line, "t": time.monotonic()}, separators=(",", ":")) + "\n")


def steps(count: int, seats: int, began: float) -> Iterator[dict[str, Any]]:
    """A log in which requests of different lengths come and go in every seat, with texts."""
    chance = random.Random(7)
    names, left = [""] * seats, [0] * seats
    number = 0
    for n in range(1, count + 1):
        joined, ended = [], {}
        for seat in range(seats):
            if not left[seat]:
                number += 1
                names[seat], left[seat] = str(number), chance.randint(20, 200)
                joined.append(names[seat])
            left[seat] -= 1
            if not left[seat]:
                ended[names[seat]] = "length"
        yield {
            "v": 2,
            "n": n,
            "t": began + n / RATE,
            "dur": 0.008,
            "model": "m",
            "instance": "0",
            "kind": "step",
            "batch": seats,
            "ids": list(names),
            "rows": list(range(seats)),
            "phase": "".join("p" if name in joined else "d" for name in names),
            "tokens": [1] * seats,
            "made": [1] * seats,
            "texts": [" word"] * seats,
            "joined": joined,
            "ended": ended,
            "slots": seats,
            "seats": ["" if name in ended else name for name in names],
        }


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p99": ordered[int(len(ordered) * 0.99)], "max": ordered[-1]}
