"""`vllm serve` with the recorder under load: what it changes, what it leaves behind, and whether its recording answers.

The same requests are sent at the same times to three servers: without the recorder, with it, and with it and another
token budget. They come in bursts, some leave after a few tokens, and the KV cache is so small that vLLM preempts.
Answers are greedy, in fp32: those of the first two servers are compared token by token. The second one's recording
then answers `labctl explain`, and `labctl predict` of the third one's setting, whose recording says what was true.

vLLM is the command of LABS_VLLM_COMMAND, or the one in PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil

from benchmarks import leaks
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.tables import table
from labsched import recording
from labsched.figures import figures

MODEL = "labs/shared/models/tiny-llama"
VOCABULARY = 1000  # ids below it are words of that model
BUDGET, OTHER = "256", "64"  # max_num_batched_tokens: recorded, and predicted
SETTINGS = ("--max-model-len=256", "--max-num-seqs=32", "--block-size=32", "--num-gpu-blocks-override=33")
RECORDER = ("--scheduler-cls", "labsched.vllm.RecordingScheduler")
MIB = 64  # of a recording, at most
BURST = 24  # requests that come together, at most
LEAVE = 0.05  # of the requests leave before their answer has ended
WARM, IN_FLIGHT = 500, 64  # requests before memory is looked at, so many at a time
LOAD = 0.7  # of the rate at which those were answered
START_S, SETTLE_S = 180.0, 30.0
PREEMPTIONS = "vllm:num_preemptions_total"
SHOWN = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_mean_ms", "requests_per_s")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate",
        type=float,
        default=0.0,
        help="record-load: requests a second (0: 0.7 of what the first server can do)",
    )


class Ask(NamedTuple):
    at: float  # seconds since the first one, at one request a second
    prompt: list[int]
    limit: int
    leaves: int  # after so many tokens; 0: it stays


@dataclass
class Seen:
    """What one server did. ``cpu`` is the seconds of processor time of its processes, ``late`` of the client's send."""

    tokens: list[list[int]]
    latencies: list[float]
    late: list[float]
    cpu: float
    before: leaks.Held
    after: leaks.Held
    preemptions: int
    folder: Path
    rate: float
    failed: list[str] = field(default_factory=list)


def requests(count: int) -> list[Ask]:
    """In bursts; one a second on average."""
    chance, now, found = random.Random(1), 0.0, list[Ask]()
    while len(found) < count:
        for _ in range(chance.randint(1, BURST)):
            limit = chance.randint(2, 14)
            prompt = [chance.randrange(5, VOCABULARY) for _ in range(chance.randint(8, 90))]
            found.append(Ask(now, prompt, limit, chance.randint(1, limit) if chance.random() < LEAVE else 0))
        now += chance.expovariate(2 / (BURST + 1))
    return found[:count]


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Print and return what differs, what grew, what it cost, and the errors of the prediction."""
    asks = requests(asked.count or 10_000)
    with tempfile.TemporaryDirectory(prefix="labs-record-load-") as name:
        home = Path(name)
        plain = _serve(home / "plain", (), BUDGET, asks, asked.rate)
        recorded = _serve(home / "recorded", RECORDER, BUDGET, asks, plain.rate)
        other = _serve(home / "other", RECORDER, OTHER, asks, plain.rate)
        whole = sum(one == two for one, two in zip(plain.tokens, recorded.tokens, strict=True))
        found: dict[str, Any] = {
            "requests": len(asks),
            "rate": plain.rate,
            "left early": sum(ask.leaves > 0 for ask in asks),
            "answers alike": whole,
            "failed": plain.failed + recorded.failed,
            "servers": {"without": _said(plain), "with": _said(recorded), "other": _said(other)},
            "grown": leaks.grown({"with": recorded.before}, {"with": recorded.after}),
            **_recording(recorded.folder),
        }
        sentence = _labctl("explain", str(recorded.folder)).partition("\n\n")[0]
        changed = f"max_num_batched_tokens={OTHER}"
        said = json.loads(_labctl("predict", str(recorded.folder), "-y", "--json", "--set", changed))
        read = recording.read(other.folder)
        true = figures(read.rows, {arrival.name: arrival.at for arrival in read.arrivals})
    found |= {"explain": sentence, "predicted": said["predicted"], "measured": true, "recorded": said["recorded"]}
    _show(found, said)
    return found


def _show(found: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    for name in ("requests", "rate", "left early", "answers alike", "failed", "grown", "bytes", "most_bytes", "steps"):
        print(f"{name}: {found[name]}")
    servers = found["servers"]
    print(table([(name, *(one[name] for one in servers.values())) for name in servers["with"]], ("", *servers)))
    print("\n" + found["explain"] + "\n")
    rows = []
    for name in SHOWN:
        was, predicted, true = (found[key][name] for key in ("recorded", "predicted", "measured"))
        interval = f"{said['low'][name]:,.2f} to {said['high'][name]:,.2f}"
        rows.append(
            (name, f"{was:,.2f}", f"{predicted:,.2f}", interval, f"{true:,.2f}", f"{predicted / true - 1:+.1%}")
        )
    print(
        table(rows, (f"max_num_batched_tokens {BUDGET} -> {OTHER}", "recorded", "predicted", "", "measured", "error"))
    )
    print("extrapolated:", said["extrapolated"], "held up:", said["step_time"]["held_up_steps"])


def _said(seen: Seen) -> dict[str, str]:
    ms = sorted(1e3 * each for each in seen.latencies)
    return {
        "processor time, ms a request": f"{1e3 * seen.cpu / len(seen.latencies):.2f}",
        "latency p50, ms": f"{statistics.median(ms):.1f}",
        "latency p99, ms": f"{ms[int(0.99 * len(ms))]:.1f}",
        "client late p99, ms": f"{1e3 * sorted(seen.late)[int(0.99 * len(seen.late))]:.1f}",
        "preemptions": f"{seen.preemptions:,}",
        "memory, MB": f"{seen.before.memory:.0f} -> {seen.after.memory:.0f}",
        "open files": f"{seen.before.files} -> {seen.after.files}",
        "threads": f"{seen.before.threads} -> {seen.after.threads}",
    }


def _recording(folder: Path) -> dict[str, Any]:
    read = recording.read(folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return {"bytes": size, "most_bytes": MIB * 2**20, "steps": len(read.rows), "recorded requests": len(read.arrivals)}


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


def _serve(folder: Path, more: Sequence[str], budget: str, asks: Sequence[Ask], rate: float) -> Seen:
    """Start a server, send it all requests, and look at it before and after."""
    with _server(folder, [*SETTINGS, f"--max-num-batched-tokens={budget}", *more]) as (process, address):
        print(f"{folder.name}: {address}", flush=True)
        return asyncio.run(_load(process, address, asks, folder, rate))


@contextlib.contextmanager
def _server(folder: Path, words: Sequence[str]) -> Iterator[tuple[psutil.Process, str]]:
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
    }
    argv = [os.environ.get("LABS_VLLM_COMMAND") or "vllm", "serve", str(root / MODEL), "--served-model-name=tiny"]
    argv += ["--enforce-eager", "--dtype=float32", "--host=127.0.0.1", f"--port={port}", *words]
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


async def _load(process: psutil.Process, address: str, asks: Sequence[Ask], folder: Path, rate: float) -> Seen:
    timeout, most = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=most) as session:
        room, began = asyncio.Semaphore(IN_FLIGHT), time.monotonic()

        async def one(ask: Ask) -> tuple[list[int], float, str]:
            async with room:
                return await _ask(session, address, ask)

        warm = await asyncio.gather(*map(one, asks[:WARM]))
        rate = rate or LOAD * WARM / (time.monotonic() - began)
        await asyncio.sleep(1.0)
        before, cpu = leaks.held({"": process})[""], _cpu(process)
        rest, late = await _open_loop(session, address, asks[WARM:], rate)
        cpu = _cpu(process) - cpu
        async with session.get(f"{address}/metrics") as answer:
            page = await answer.text()
    await asyncio.sleep(1.0)  # connections end
    after = leaks.held({"": process})[""]
    preemptions = sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(PREEMPTIONS))
    failed = [problem for *_, problem in (*warm, *rest) if problem]
    latencies = [seconds for _, seconds, _ in rest]
    tokens = [answer for answer, *_ in (*warm, *rest)]
    return Seen(tokens, latencies, late, cpu, before, after, int(preemptions), folder, rate, failed)


def _cpu(process: psutil.Process) -> float:
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


async def _open_loop(
    session: aiohttp.ClientSession, address: str, asks: Sequence[Ask], rate: float
) -> tuple[list[tuple[list[int], float, str]], list[float]]:
    """The answers, and by how many seconds each request was sent late."""
    began, tasks, late = time.monotonic(), list[asyncio.Task[tuple[list[int], float, str]]](), list[float]()
    for ask in asks:
        at = began + (ask.at - asks[0].at) / rate
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        late.append(time.monotonic() - at)
        tasks.append(asyncio.create_task(_ask(session, address, ask)))
    return [await task for task in tasks], late


async def _ask(session: aiohttp.ClientSession, address: str, ask: Ask) -> tuple[list[int], float, str]:
    """The tokens of an answer, until its client leaves."""
    began, tokens = time.monotonic(), list[int]()
    body = {"model": "tiny", "prompt": ask.prompt, "max_tokens": ask.limit, "temperature": 0, "ignore_eos": True}
    body |= {"return_token_ids": True, "stream": ask.leaves > 0}
    try:
        async with session.post(f"{address}/v1/completions", json=body) as answer:
            if not ask.leaves:
                tokens = (await answer.json())["choices"][0]["token_ids"]
            else:
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        tokens += json.loads(line[6:])["choices"][0]["token_ids"] or []
                    if len(tokens) >= ask.leaves:
                        tokens = tokens[: ask.leaves]
                        answer.close()
                        break
    except (aiohttp.ClientError, LookupError, ValueError, TypeError) as error:
        return tokens, time.monotonic() - began, f"{type(error).__name__}: {error}"
    return tokens, time.monotonic() - began, ""
