"""`vllm serve` with the recorder under load: what it changes, what it leaves behind, and whether its recording answers.

A crowd, ``--count`` requests as fast as they are answered, goes to a server without the recorder and to one with it.
Some leave before their answers have ended, and the KV cache is so small that vLLM preempts. Answers are greedy, in
fp32, and compared token by token. What the recording server holds must not grow by more.

A stream of single requests, at random times, then goes to two servers with the recorder that have different token
budgets. The recording of the first answers `labctl explain`, and `labctl predict` of the second one's setting, whose
recording says what was true.

vLLM is the command of LABS_VLLM_COMMAND, or the one in PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil

from benchmarks import leaks
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.tables import format_table
from labsched import recording
from labsched.figures import figures

MODEL = "labs/shared/models/tiny-llama"
VOCABULARY = 1000  # ids below it are words of that model
BUDGET, OTHER = "256", "64"  # max_num_batched_tokens: recorded, and predicted
SETTINGS = ("--max-model-len=256", "--max-num-seqs=32", "--block-size=32", "--num-gpu-blocks-override=33")
RECORDER = ("--scheduler-cls", "labsched.vllm.RecordingScheduler")
MIB = 64  # of a recording, at most
CALLS, EACH = 8, 8  # of the crowd at a time, and the requests of each call
LEAVE = 0.05  # of the crowd's calls are left before they are answered
WARM = 800  # requests before memory is looked at
STREAM = 400  # single requests
START_S, SETTLE_S = 400.0, 30.0
PREEMPTIONS = "vllm:num_preemptions_total"
SHOWN = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_mean_ms", "requests_per_s")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=10.0, help="record-load: requests a second of the stream (10)")


class Call(NamedTuple):
    """Prompts that are sent together, and the most tokens of each answer; ``leaves``: its client does not wait."""

    prompts: list[list[int]]
    limit: int
    leaves: bool = False


@dataclass
class Crowd:
    """What became of it. ``cpu`` is the seconds of processor time of the server's processes, after WARM requests."""

    tokens: list[list[list[int]]]
    failed: list[str]
    seconds: float
    cpu: float
    before: leaks.Held
    after: leaks.Held
    preemptions: int

    def grown(self) -> leaks.Held:
        """The growth of the server's memory: vLLM itself keeps more and more for a while."""
        one, other = self.before, self.after
        return leaks.Held(other.memory - one.memory, other.files - one.files, other.threads - one.threads)


def calls(count: int, each: int, leave: float, seed: int) -> list[Call]:
    chance = random.Random(seed)

    def prompt() -> list[int]:
        return [chance.randrange(5, VOCABULARY) for _ in range(chance.randint(8, 90))]

    return [
        Call([prompt() for _ in range(each)], chance.randint(2, 14), chance.random() < leave)
        for _ in range(count // each)
    ]


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Print and return what differs, what grew, what it cost, and the errors of the prediction."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a server is not left behind
    crowd = calls(asked.count or 10_000, EACH, LEAVE, 1)
    stream = calls(STREAM, 1, 0.0, 2)
    chance = random.Random(3)
    times = list(itertools.accumulate(chance.expovariate(asked.rate) for _ in stream))
    with tempfile.TemporaryDirectory(prefix="labs-record-load-") as name:
        home = Path(name)
        seen = {}
        for title, words in {"without": (), "with": RECORDER}.items():
            with _server(home / title, BUDGET, words) as server:
                seen[title] = asyncio.run(_crowd(*server, crowd))
            print(f"{title}: {_said(seen[title], len(crowd) * EACH)}", flush=True)
        plain, recorded = seen.values()
        stay = [number for number, call in enumerate(crowd) if not call.leaves]
        read = recording.read_recording(home / "with")
        crowded = {
            "requests": len(crowd) * EACH,
            "left": (len(crowd) - len(stay)) * EACH,
            "answers": len(stay) * EACH,
            "other answers": sum(
                one != other for n in stay for one, other in zip(plain.tokens[n], recorded.tokens[n], strict=True)
            ),
            "failed": plain.failed + recorded.failed,
            "grown more than without": leaks.grown({"server": plain.grown()}, {"server": recorded.grown()}),
            "recorded requests": len(read.arrivals),
            "recorded as cancelled": sum(one.why == "cancelled" for one in read.arrivals),
            "recorded steps": len(read.rows),
            "recorded preemptions": sum(len(row.preempted) for row in read.rows),
            "MiB": round(sum(file.stat().st_size for file in (home / "with").iterdir()) / 2**20, 2),
            "at most MiB": MIB,
        }
        print(format_table([(key, str(value)) for key, value in crowded.items()], ("the crowd", "")), flush=True)
        for title, budget in {"stream": BUDGET, "other": OTHER}.items():
            with _server(home / title, budget, RECORDER) as server:
                asyncio.run(_stream(*server, stream, times))
        sentence = _labctl("explain", str(home / "stream")).partition("\n\n")[0]
        changed = f"max_num_batched_tokens={OTHER}"
        said = json.loads(_labctl("predict", str(home / "stream"), "-y", "--json", "--set", changed))
        other = recording.read_recording(home / "other")
        said["measured"] = figures(other.rows, {arrival.name: arrival.at for arrival in other.arrivals})
    _show(sentence, said)
    servers = {title: dict(zip(("cpu", "seconds"), (one.cpu, one.seconds), strict=True)) for title, one in seen.items()}
    return {"crowd": crowded, "servers": servers, "explain": sentence, "predict": said}


def _said(seen: Crowd, requests: int) -> str:
    before, after = seen.before, seen.after
    return (
        f"{seen.seconds:.0f} s, {1e3 * seen.cpu / (requests - WARM):.2f} ms of processor time a request, "
        f"{seen.preemptions:,} preemptions; memory {before.memory:.0f} -> {after.memory:.0f} MB, "
        f"files {before.files} -> {after.files}, threads {before.threads} -> {after.threads}"
    )


def _show(sentence: str, said: Mapping[str, Any]) -> None:
    print("\n" + sentence + "\n")
    rows = []
    for name in SHOWN:
        was, predicted, true = (said[key][name] for key in ("recorded", "predicted", "measured"))
        interval = f"{said['low'][name]:,.2f} to {said['high'][name]:,.2f}"
        rows.append(
            (name, f"{was:,.2f}", f"{predicted:,.2f}", interval, f"{true:,.2f}", f"{predicted / true - 1:+.1%}")
        )
    print(
        format_table(
            rows, (f"max_num_batched_tokens {BUDGET} -> {OTHER}", "recorded", "predicted", "", "measured", "error")
        )
    )
    held = said["step_time"]["held_up_steps"]
    print("extrapolated:", said["extrapolated"], "; steps held up in the recording:", held)


def _labctl(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "labctl", *words],
        cwd=Workspace.find().root,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise LabError(f"labctl {' '.join(words)} failed", done.stderr.strip(), code="bench-failed")
    return done.stdout


@contextlib.contextmanager
def _server(folder: Path, budget: str, words: Sequence[str]) -> Iterator[tuple[psutil.Process, str]]:
    """A vLLM of its own process group on a free port of loopback, once it is healthy."""
    root = Workspace.find().root
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "LABS_RECORD": str(folder), "LABS_RECORD_MIB": str(MIB)}
    env |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",  # two that wait for each other stand still on a busy machine
    }
    argv = [os.environ.get("LABS_VLLM_COMMAND") or "vllm", "serve", str(root / MODEL), "--served-model-name=tiny"]
    argv += ["--enforce-eager", "--dtype=float32", "--host=127.0.0.1", f"--port={port}", "--uvicorn-log-level=warning"]
    argv += [*SETTINGS, f"--max-num-batched-tokens={budget}", *words]
    with (folder.parent / f"{folder.name}.log").open("w+") as log:
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            asyncio.run(_healthy(process, f"http://127.0.0.1:{port}", log))
            yield psutil.Process(process.pid), f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SETTLE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


async def _healthy(process: subprocess.Popen[bytes], address: str, log: Any) -> None:
    end = time.monotonic() + START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{address}/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.5)
    log.seek(0)
    raise LabError(
        "vLLM does not start",
        log.read()[-800:],
        "LABS_VLLM_COMMAND=PATH make bench ARGS=record-load",
        code="bench-failed",
    )


async def _crowd(process: psutil.Process, address: str, crowd: Sequence[Call]) -> Crowd:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:
        warm = await _answers(session, address, crowd[: WARM // EACH])
        await asyncio.sleep(1.0)  # connections end
        before, cpu, began = leaks.held({"": process})[""], _cpu(process), time.monotonic()
        rest = await _answers(session, address, crowd[WARM // EACH :])
        seconds = time.monotonic() - began
        async with session.get(f"{address}/metrics") as answer:
            page = await answer.text()
    await asyncio.sleep(1.0)
    cpu, after = _cpu(process) - cpu, leaks.held({"": process})[""]
    preemptions = sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(PREEMPTIONS))
    failed = [problem for _, problem in (*warm, *rest) if problem]
    return Crowd([tokens for tokens, _ in (*warm, *rest)], failed, seconds, cpu, before, after, int(preemptions))


async def _answers(
    session: aiohttp.ClientSession, address: str, crowd: Sequence[Call]
) -> list[tuple[list[list[int]], str]]:
    """With CALLS in flight."""
    room = asyncio.Semaphore(CALLS)

    async def one(call: Call) -> tuple[list[list[int]], str]:
        async with room:
            return await _answer(session, address, call)

    return await asyncio.gather(*map(one, crowd))


async def _stream(process: psutil.Process, address: str, stream: Sequence[Call], times: Sequence[float]) -> None:
    """One request at each of the times (seconds from now)."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:
        began, tasks = time.monotonic(), []
        for at, call in zip(times, stream, strict=True):
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            tasks.append(asyncio.create_task(_answer(session, address, call)))
        if problems := [problem for _, problem in await asyncio.gather(*tasks) if problem]:
            raise LabError("the stream was not answered", problems[0], code="bench-failed")


def _cpu(process: psutil.Process) -> float:
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


async def _answer(session: aiohttp.ClientSession, address: str, call: Call) -> tuple[list[list[int]], str]:
    """The tokens for each prompt, and what failed, in words; nothing of a call that is left at its first token."""
    body = {"model": "tiny", "prompt": call.prompts, "max_tokens": call.limit, "temperature": 0, "ignore_eos": True}
    body |= {"return_token_ids": True, "stream": call.leaves}
    try:
        async with session.post(f"{address}/v1/completions", json=body) as answer:
            if call.leaves:
                await answer.content.readline()
                answer.close()
                return [], ""
            return [choice["token_ids"] for choice in (await answer.json())["choices"]], ""
    except (aiohttp.ClientError, TimeoutError, LookupError, ValueError, TypeError) as error:
        return [], f"{type(error).__name__}: {error}"
