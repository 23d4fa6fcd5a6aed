"""What `labctl predict` gets right: seconds and decisions on real servers, many recordings, and how fast."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from typing import Any

from benchmarks import predict_recordings, predict_seconds
from labctl.listener import Silent
from labctl.stack.session import Session
from labkit.tables import format_table
from labsched.log.lines import WORDS
from labsched.log.settings import SchedulerSettings
from labsched.replay import player
from labsched.replay.recording import Arrival, Recording

PARTS = ("replay", "recordings", "seconds", "decisions")
REPLAY_S = 3.0  # the target for ten recorded minutes


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine-name", default="", help="predict: recordings of the engines with this in their name")
    parser.add_argument("--shape", default="random:llama-100m", help="predict: the model whose seconds are predicted")
    parser.add_argument("--requests", type=int, default=70, help="predict: requests of each run of seconds")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """The load average is of the machine before and after: seconds need a quiet one."""
    session, before = Session.open(Silent()), os.getloadavg()[0]
    found: dict[str, Any] = {}
    for part in asked.part or PARTS:
        began = time.monotonic()
        match part:
            case "replay":
                found[part] = speed()
            case "recordings":
                found[part] = predict_recordings.run(session.workspace, asked.engine_name)
            case "seconds":
                found[part] = predict_seconds.seconds(session, asked.shape, asked.requests)
            case _:
                found[part] = predict_seconds.decisions(session, asked.shape, asked.requests)
        print(f"{part}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    rows = [row for part in found.values() for row in part["rows"]]
    print("\n" + format_table(rows, ("what", "found", "target", "")))
    after = os.getloadavg()[0]
    print(f"load average before {before:.1f}, after {after:.1f}")
    return {**found, "load": [before, after]}


def speed() -> dict[str, Any]:
    """Ten recorded minutes: steps of 15 ms, four chats a second of up to 110 prompt and 70 output tokens."""
    words = {**dict.fromkeys(WORDS, ""), **predict_seconds.BASE, "gpt_model_type": "inflight_fused_batching"}
    settings = SchedulerSettings(words, 200, 32, 256, 2048, 3000)
    rng, now = random.Random(1), 0.0
    arrivals: list[Arrival] = []
    while now < 600.0:
        limit = rng.randint(10, 70)
        arrivals.append(Arrival(str(len(arrivals)), now, 0, rng.randint(10, 110), limit, limit, "length"))
        now += rng.expovariate(4.0)
    took = []
    for _ in range(3):
        began = time.process_time()
        done = player.replay(Recording(settings, arrivals), settings, lambda row: 0.015)
        took.append(time.process_time() - began)
    middle = statistics.median(took)
    what = f"replay of {done.steps[-1].over:.0f} s: {len(arrivals):,} requests, {len(done.steps):,} steps"
    row = (what, f"{middle:.2f} s of processor time", f"{REPLAY_S:g} s", "yes" if middle <= REPLAY_S else "NO")
    return {"steps": len(done.steps), "replay_s": middle, "rows": [row]}
