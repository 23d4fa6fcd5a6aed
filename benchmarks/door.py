"""What the OpenAI API costs: TTFT, time per token and tokens/s through it and over bare gRPC, alternately in one run.

One client of each kind in one thread, both lean: what is compared is the way of the tokens, not a client library.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from benchmarks.steal import undisturbed
from labctl.labs.servers import ephemeral
from labctl.listener import Silent
from labctl.runtimes import door
from labctl.runtimes.record import Choices, UpOptions
from labctl.stack import ports
from labctl.stack.session import Session
from labkit.tables import table

STACK, MODEL, PROMPT = "iterative", "iterative-gpt2", "I have lived in"
TOKENS, FEW, MANY, EACH = 64, 8, 32, 4  # tokens of an answer, streams at a time, answers of each stream
TTFT_MS, TOKEN_MS, SHARE = 1.0, 0.2, 0.9  # the yardsticks: at most so much more at FEW, at least this share at MANY


@dataclass(frozen=True)
class Seen:
    """One answer: seconds to its first token, and of each later one; how many tokens came."""

    ttft: float
    each: float
    tokens: int


Ask = Callable[[], AsyncIterator[float]]  # the arrival of each token, as of time.perf_counter()


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """Lab 02's stack with 32 slots, and the door before it: Triton's gRPC endpoint and the door's port."""
    session = Session.open(Silent())
    lab, _ = session.catalog.stack(STACK)
    options = UpOptions(Choices(set={"max_batch_size": MANY}), "local", "auto", 300.0)
    with ephemeral(session, lab, STACK, options) as handle:
        (port,) = ports.free_ports("127.0.0.1", 1)
        door.beside(session.workspace, handle.record, port).do(Silent())
        yield handle.record.endpoints.grpc, port


def run(rounds: int) -> dict[str, Any]:
    """Medians over the rounds, in which the two ways take turns."""
    found: dict[str, dict[str, list[float]]] = {}
    with served() as (endpoint, port):
        for streams in (FEW, MANY):
            for _ in range(rounds):
                for way, values in undisturbed(partial(_both, endpoint, port, streams)).items():
                    for name, value in values.items():
                        found.setdefault(f"{name}, {streams} streams", {}).setdefault(way, []).append(value)
    medians = {name: {way: statistics.median(each) for way, each in ways.items()} for name, ways in found.items()}
    rows = [
        (
            name,
            f"{each['gRPC']:.2f}",
            f"{each['door']:.2f}",
            f"{each['door'] - each['gRPC']:+.2f}",
            f"{each['door'] / each['gRPC']:.2f}",
        )
        for name, each in medians.items()
    ]
    print(table(rows, ("median", "gRPC", "door", "more", "ratio"), right=range(1, 5)))
    first, token = (medians[f"{name}, {FEW} streams"] for name in ("TTFT ms", "ms per token"))
    rate = medians[f"tokens/s, {MANY} streams"]
    more, slower, share = first["door"] - first["gRPC"], token["door"] - token["gRPC"], rate["door"] / rate["gRPC"]
    met = more <= TTFT_MS and slower <= TOKEN_MS and share >= SHARE
    load = os.getloadavg()[0]
    verdict = "met" if met else "not met"
    print(
        f"{verdict}: TTFT {more:+.2f} ms (at most {TTFT_MS:+}), a token {slower:+.3f} ms (at most "
        f"{TOKEN_MS:+}), {share:.2f} of the tokens/s (at least {SHARE}); load of the machine {load:.1f}"
    )
    return {
        "medians": medians,
        "rounds": found,
        "load": load,
        "ttft_more_ms": more,
        "token_more_ms": slower,
        "tokens_per_s_ratio": share,
    }


def _both(endpoint: str, port: int, streams: int) -> dict[str, dict[str, float]]:
    async def measure() -> dict[str, dict[str, float]]:
        async with InferenceServerClient(endpoint) as client:
            ways: dict[str, Ask] = {"gRPC": lambda: _grpc(client), "door": lambda: _http(port)}
            return {way: await _load(ask, streams) for way, ask in ways.items()}

    return asyncio.run(measure())


async def _load(ask: Ask, streams: int) -> dict[str, float]:
    await _answer(ask)  # warm
    began = time.perf_counter()

    async def stream() -> list[Seen]:
        return [await _answer(ask) for _ in range(EACH)]

    seen = [one for each in await asyncio.gather(*(stream() for _ in range(streams))) for one in each]
    took = time.perf_counter() - began
    return {
        "TTFT ms": 1e3 * statistics.median(one.ttft for one in seen),
        "ms per token": 1e3 * statistics.median(one.each for one in seen),
        "tokens/s": sum(one.tokens for one in seen) / took,
    }


async def _answer(ask: Ask) -> Seen:
    began = time.perf_counter()
    times = [at async for at in ask()]
    if len(times) < TOKENS // 2:
        raise RuntimeError(f"{len(times)} tokens came of {TOKENS}")
    return Seen(times[0] - began, (times[-1] - times[0]) / (len(times) - 1), len(times))


async def _grpc(client: InferenceServerClient) -> AsyncIterator[float]:
    text = InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[PROMPT.encode()]], dtype=np.object_))

    async def one() -> AsyncIterator[dict[str, Any]]:
        parameters = {"max_tokens": TOKENS, "ignore_eos": True}
        yield {"model_name": MODEL, "inputs": [text], "parameters": parameters}

    async for result, error in client.stream_infer(one()):
        if error:
            raise error
        if result.as_numpy("text_output")[0][0]:  # half a character has no text, and the door sends none
            yield time.perf_counter()


async def _http(port: int) -> AsyncIterator[float]:
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    try:
        while not (line := await reader.readline()).startswith(b"data: [DONE]"):
            if not line:
                raise RuntimeError("the door closed the connection")
            if line.startswith(b"data: ") and json.loads(line[6:])["choices"][0]["text"]:
                yield time.perf_counter()
    finally:
        writer.close()
