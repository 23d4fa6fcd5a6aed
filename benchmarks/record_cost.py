"""What the recorder in vLLM costs: vLLM's scheduler with 256 running requests and no model, with and without it.

`step`: processor time of vLLM's thread for one `schedule()` and one `update_from_output()`, in turn without and with
the recorder. `own`: of it, in the recorder's own calls. `thread`: of the thread that writes, for each step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from labctl.runtimes.layers import layer
from labctl.workspace import Workspace
from labkit.tables import format_table

KINDS = {"synchronous": ("false", 0), "asynchronous": ("true", 0), "asynchronous, 500 wait": ("true", 500)}
RUNNING, STEPS, PAUSE_S = 256, 200, 0.005


def run(rounds: int) -> dict[str, Any]:
    """Measure in a process with vLLM; print and return medians in microseconds."""
    workspace = Workspace.find()
    packages = layer("vllm", workspace).require()
    argv = [sys.executable, "-m", "benchmarks.record_cost", str(rounds)]
    env = {**os.environ, "PYTHONPATH": f"{packages}:{workspace.root / 'tests' / 'helpers'}"}
    done = subprocess.run(argv, cwd=workspace.root, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rows = [(name, *(f"{value:,.0f}" for value in one.values())) for name, one in found.items()]
    header = ("scheduling", "step us", "recorded us", "own us", "own p99", "thread us")
    print(f"{RUNNING} running requests, {rounds} rounds of {STEPS} steps; medians")
    print(format_table(rows, header, right=range(1, len(header))))
    return found


def measure(words: dict[str, str], waiting: int, recorded: bool) -> tuple[list[float], list[float], float]:
    """Seconds of vLLM's thread for each step, of these the recorder's own, and of the thread that writes for a step."""
    import vllm_traffic
    from vllm.v1.outputs import ModelRunnerOutput

    from labsched.vllm.files import Files

    written: list[float] = []
    write = Files._write

    def timed_write(self: Files) -> None:
        began = time.thread_time()
        write(self)
        written.append(time.thread_time() - began)

    Files._write = timed_write  # type: ignore[method-assign]
    server = vllm_traffic.Server(words, recorded)
    scheduler = server.scheduler
    own: list[float] = []
    steps: list[float] = []
    for name in ("decided", "landed") if recorded else ():
        setattr(scheduler._noted, name, _timed(getattr(scheduler._noted, name), own))
    for _ in range(RUNNING + waiting):
        server.add(20, 400, 0, 0, False)
    for _ in range(5):
        server.step()
    own.clear()
    flying = server.flying
    for _ in range(STEPS):
        began = time.thread_time()
        output = scheduler.schedule()
        spent = time.thread_time() - began
        ids = [*output.num_scheduled_tokens]
        flying.append((output, ModelRunnerOutput(ids, {id: n for n, id in enumerate(ids)}, [[3] for _ in ids])))
        if len(flying) >= server.ahead:
            began = time.thread_time()
            scheduler.update_from_output(*flying.popleft())
            spent += time.thread_time() - began
        steps.append(spent)
        time.sleep(PAUSE_S)
    scheduler.shutdown()
    Files._write = write  # type: ignore[method-assign]
    return steps, [a + b for a, b in zip(own[::2], own[1::2], strict=False)], sum(written) / (STEPS + 5)


def _timed(call: Callable[..., None], spent: list[float]) -> Callable[..., None]:
    """The call, whose processor time is added to a list."""

    def timed(*args: Any) -> None:
        began = time.thread_time()
        call(*args)
        spent.append(time.thread_time() - began)

    return timed


def main(rounds: int) -> dict[str, dict[str, float]]:
    """In the process with vLLM."""
    sizes = {"max_num_sequences": str(RUNNING), "max_num_tokens": "2048"}
    sizes |= {"max_tokens_in_paged_kv_cache": str(RUNNING * 512)}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LABS_RECORD"] = folder
        for name, (ahead, waiting) in KINDS.items():
            words = {**sizes, "async_scheduling": ahead}
            plain: list[float] = []
            recorded: list[float] = []
            own: list[float] = []
            thread: list[float] = []
            for _ in range(rounds):
                plain += measure(words, waiting, False)[0]
                steps, calls, writing = measure(words, waiting, True)
                recorded, own, thread = recorded + steps, own + calls, [*thread, writing]
            values = [statistics.median(each) for each in (plain, recorded, own)]
            values += [sorted(own)[int(0.99 * len(own))], statistics.median(thread)]
            names = ("step", "recorded", "own", "own_p99", "thread")
            found[name] = {key: value * 1e6 for key, value in zip(names, values, strict=True)}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int)
    print(json.dumps(main(parser.parse_args().rounds)))
