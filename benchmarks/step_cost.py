"""What our model adds to a step: processor time, around vLLM's own scheduler and an engine that computes nothing.

The same requests decode twice, in turn: in vLLM's loop as it is, and in the labs' model with its account of each
decision, step log, metrics and clock. The difference is ours. It is the processor time of the engine's thread, so
others on the machine do not count in it; the caches that they fill do. Beside it is that of our other threads: a GPU
leaves them the time in which the engine's thread waits for it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

from benchmarks import outside_triton  # noqa: F401
from labctl.listener import Silent
from labctl.runtimes.layers import layer
from labctl.stack.session import Session
from labkit.tables import format_table

SIZES = (8, 64, 256)  # requests that decode
PROMPT, NEW = 800, 120  # tokens of each
BLOCK = 32
STEP_MS = 10.0  # of an H100 with Llama-2-7B (docs/develop/figures.md)


def run(rounds: int) -> dict[str, Any]:
    """Print and return medians in milliseconds, by the number of requests."""
    session = Session.open(Silent())
    packages = layer("vllm", session.workspace)
    packages.require()
    argv = [sys.executable, "-m", "benchmarks.step_cost", "--rounds", str(rounds)]
    env = {**os.environ, **packages.environment}
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(session.workspace.root / "src")])
    done = subprocess.run(argv, cwd=session.workspace.root, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rows = [
        (
            size,
            f"{one['vllm']:.2f}",
            f"{one['ours']:.2f}",
            f"{one['added']:.2f}",
            f"{one['added'] / STEP_MS:.1%}",
            f"{one['beside']:.2f}",
        )
        for size, one in found.items()
    ]
    print(f"processor time of a step, ms; medians of {rounds} rounds of {NEW} steps")
    head = ("requests", "vLLM's loop", "our model", "ours adds", f"of a step of {STEP_MS:g} ms", "other threads")
    print(format_table(rows, head, right=range(6)))
    return found


def measure(size: int, rounds: int, profile: bool) -> dict[str, float]:
    """Medians in milliseconds of processor time for a step: vLLM's loop, our model's, what is between them, and that of
    our other threads.
    """
    times: dict[str, list[float]] = {"vllm": [], "ours": [], "beside": []}
    profiler = cProfile.Profile()
    for number in range(rounds):
        one = _Server(size)
        for name in ("vllm", "ours") if number % 2 else ("ours", "vllm"):
            one.submit()
            step = one.alone if name == "vllm" else one.model_step
            for _ in range(NEW // 4):  # prompts, and the first steps
                step()
            one.recorder.settle()
            began, all_began = time.thread_time(), time.process_time()
            if profile and name == "ours":
                profiler.enable()
            for _ in range(NEW // 2):
                step()
            profiler.disable()
            took = time.thread_time() - began
            times[name].append(took / (NEW // 2) * 1e3)
            if name == "ours":
                one.recorder.settle()
                times["beside"].append((time.process_time() - all_began - took) / (NEW // 2) * 1e3)
            while not one.scheduler.idle:
                one.model_step()
        one.close()
    if profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(35)
    found = {name: statistics.median(values) for name, values in times.items()}
    found["added"] = statistics.median(a - b for a, b in zip(times["ours"], times["vllm"], strict=True))
    return found


class _Server:
    """The model's loop around vLLM's scheduler, and Triton's part of it left out."""

    def __init__(self, size: int) -> None:
        from benchmarks.counting_vllm import make_counted_vllm
        from labserve.driver import DriverThread
        from labserve.guard import Guard
        from labserve.inflight.engine_driver import TokenAnswers, engine_recorder
        from labserve.inflight.engines import Setup
        from labserve.inflight.logprobs import LogProbs
        from labserve.model_shape import ModelShape
        from labserve.vllm.settings import VllmSettings

        self._size, self._folder = size, tempfile.TemporaryDirectory()
        tokens = size * (PROMPT + NEW + BLOCK)
        given = {
            "engine": "vllm",
            "gpt_model_type": "inflight_fused_batching",
            "max_num_sequences": str(size),
            "max_tokens_in_paged_kv_cache": str(tokens),
            "max_num_tokens": str(size * PROMPT),
            "block_size": str(BLOCK),
            "run_dir": self._folder.name,
        }

        def word(name: str) -> str:
            return given.get(name, "")

        shape = ModelShape(vocabulary=32_000, context=PROMPT + NEW + BLOCK, token_values=1, head_dim=64)
        self.scheduler = make_counted_vllm(word, shape.context, shape.vocabulary)
        settings = VllmSettings.of(word, shape)
        setup = Setup(self.scheduler, shape, settings.kv, settings.features, LogProbs(word), [], "")
        args = {
            "model_name": "tensorrt_llm",
            "model_instance_name": "tensorrt_llm_0_0",
            "model_config": json.dumps(
                {"input": [], "parameters": {key: {"string_value": text} for key, text in given.items()}}
            ),
        }
        guard = Guard(args)
        answers, self.recorder = TokenAnswers(False), engine_recorder(args, setup)
        self.driver = DriverThread(guard, self.scheduler, answers, self.recorder, read=lambda source, number: None)
        self._count = 0
        gc.collect()
        gc.freeze()  # as vLLM's engine does once it is there (vllm/v1/engine/core.py)

    def submit(self) -> None:
        """All requests at once; each answers with as many tokens as it may have."""
        from labserve.request import ServedRequest

        for _ in range(self._size):
            source = SimpleNamespace(
                is_cancelled=lambda: False,
                parameters=lambda: "",
                get_response_sender=lambda: SimpleNamespace(send=lambda *args: None),
                trace=lambda: None,
            )
            self._count = number = self._count + 1
            request = ServedRequest(f"{317590000 + number}", [number % 31_000 + 1] * PROMPT, NEW, number=number)
            request.source = source
            request.sampling = SimpleNamespace(tokens=[5] * NEW, word=False)  # type: ignore[assignment]
            self.driver.submit(request)

    def alone(self) -> None:
        """A step of vLLM's own loop: without the account of what was decided."""
        scheduler = self.scheduler.engine.engine_core.engine_core.scheduler
        watched = type(scheduler)
        scheduler.__class__ = next(kind for kind in watched.__mro__ if kind.__module__.startswith("vllm."))
        self.scheduler.engine.step()
        scheduler.__class__ = watched

    def model_step(self) -> None:
        """As the driver's thread does, which does not run here."""
        self.driver.step()

    def close(self) -> None:
        self.recorder.close()
        self._folder.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--profile", action="store_true", help="print where the time of our model goes")
    given = parser.parse_args()
    print(json.dumps({str(size): measure(size, given.rounds, given.profile) for size in given.sizes}))
