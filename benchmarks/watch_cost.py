"""What the step log and the clock cost: the labs' decode loop, and beside each step all that a model does for them."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

from benchmarks import outside_triton  # noqa: F401
from labctl.artifacts import weights
from labctl.listener import Silent
from labctl.stack.session import Session
from labkit.tables import format_table
from labsched.log.steplog import StepLog
from labsched.slots import Slots
from labserve.gpt2.decoders import CachedDecoder
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import Sequence
from labserve.observe.clock import StepClock
from labserve.observe.recorder import GrownText, StepTexts
from labserve.text.detok import Detokenizer
from labserve.text.prompts import open_tokenizer
from labserve.text.sampling import Sampler

SHAPES = {"GPT-2, 124M": "random:gpt2", "tiny-gpt2, shipped": "shipped:tiny-gpt2"}
BATCH, PROMPT, NEW, WAITING = 8, 64, 48, 8
KINDS = ("texts", "steps", "off")  # what is written


def run(rounds: int) -> dict[str, Any]:
    """Measure both shapes, each in a process of its own; print and return medians in microseconds."""
    session = Session.open(Silent())
    found, rows = {}, []
    for name, spec in SHAPES.items():
        folder = weights.parse_source(spec).make(session.workspace, lambda text: None)
        argv = [sys.executable, "-m", "benchmarks.watch_cost", str(folder), "--rounds", str(rounds)]
        done = subprocess.run(argv, cwd=session.workspace.root, capture_output=True, text=True, check=True)
        one = found[name] = json.loads(done.stdout)
        for kind in KINDS:
            rows.append(
                (
                    name,
                    f"{one['step'] / 1e3:,.2f}",
                    kind,
                    f"{one[kind]:.0f}",
                    f"{one[kind] / one['step']:.2%}",
                    f"{one['clock']:.1f}",
                )
            )
    print(f"batch {BATCH}, {PROMPT}-token prompts, {NEW} steps, {WAITING} waiting requests; medians")
    print(format_table(rows, ("model", "step ms", "written", "log us", "of a step", "clock us"), right=(1, 3, 4, 5)))
    return found


def measure(folder: str, rounds: int) -> dict[str, float]:
    """Medians in microseconds: of a decode step, of what a model does for each kind of log, of a clock that is free.

    A step is timed by the clock on the wall, the rest by what the thread itself computes: others on the machine do not
    count in it.
    """
    tokenizer = open_tokenizer(folder)
    model = GPT2(folder, threads=2)
    decoder = CachedDecoder(model, BATCH)
    times: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as run_dir:
        clock = StepClock(run_dir, "m", "0_0")
        writers = {}
        for kind in KINDS:
            os.environ["LABS_STEP_LOG"] = kind
            log = StepLog(run_dir, kind, "0_0")
            writers[kind] = (log, StepTexts(lambda: tokenizer))
        for _ in range(rounds):
            chance = random.Random(0)
            names = [str(n) for n in range(BATCH)]
            seats = Slots(BATCH)
            for name in names:
                seats.take(name, name)
            batch = [
                Sequence(
                    [chance.randrange(256, 1000) for _ in range(PROMPT)],
                    PROMPT,
                    PROMPT + NEW,
                    None,
                    Sampler(),
                    Detokenizer(tokenizer),
                )
                for _ in names
            ]
            while not batch[0].finished:
                began, started = time.thread_time(), time.monotonic()
                assert clock.ready(dict)
                asked = time.thread_time()
                phase = "".join("p" if sequence.new else "d" for sequence in batch)
                tokens = [len(sequence.ids) - sequence.cached for sequence in batch]
                computing = time.perf_counter()
                pieces = decoder.step(batch)["texts"]
                computed, ready = time.perf_counter(), time.thread_time()
                clock.done(left=BATCH)
                done = time.thread_time()
                if batch[0].cached > PROMPT:  # not the first step: it computes the prompts
                    times["step"].append(computed - computing)
                    times["clock"].append(asked - began + done - ready)
                first = next(iter(writers))
                writers[first] = writers.pop(first)  # in turn: the first writer pays for cold caches
                for kind, (log, texts) in writers.items():
                    before = time.thread_time()
                    made = [1] * BATCH
                    of_batch = zip(names, batch, strict=True)
                    grown = [GrownText(name, s.ids, s.prompt, 1) for name, s in of_batch] if log.texts else []
                    log.write(
                        started,
                        names,
                        rows=seats.places(names),
                        phase=phase,
                        tokens=tokens,
                        made=made,
                        waiting=[f"waiting-{n}" for n in range(WAITING)],
                        queue=WAITING,
                        why="no slot",
                        **texts.fields(grown, pieces),
                        joined=[],
                        evicted=[],
                        ended={},
                        slots=BATCH,
                        slots_used=seats.used,
                        seats=seats.names,
                    )
                    if batch[0].cached > PROMPT:
                        times[kind].append(time.thread_time() - before)
            for sequence in batch:
                decoder.release(sequence)
            for _, texts in writers.values():
                for name in names:
                    texts.forget(name)
        for log, _ in writers.values():
            log.close()
    return {name: statistics.median(values) * 1e6 for name, values in times.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(measure(options.folder, options.rounds)))
