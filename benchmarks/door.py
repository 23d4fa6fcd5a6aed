"""What the OpenAI API costs: TTFT, time per token and tokens/s through it and over bare gRPC, alternately in one run.

One client of each kind in one thread, both lean: what is compared is the way of the tokens, not a client library. Both
have their connection before a request is timed, as clients that keep theirs do. A round measures both ways, every
other round in the other order, and what counts is the median of the differences within a round: a machine that drifts
moves both.

The stack is one whose steps take a set time, as on a GPU: the processor is free for the server and its clients.
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
from labctl.runtimes.record import Choices, Record, UpOptions
from labctl.stack import ports
from labctl.stack.session import Session
from labkit.tables import table

STACK, MODEL, PROMPT = "two-servers", "apart-gpt2", "I have lived in"
TOKENS, FEW, MANY, EACH = 64, 8, 32, 4  # tokens of an answer, streams at a time, answers of each stream
PAIRS = 5  # measurements of both ways in a round
TTFT_MS, TOKEN_MS, SHARE = 1.0, 0.2, 0.9  # the yardsticks: at most so much more at FEW, at least this share at MANY
HEADER = ("median", "gRPC", "door", "door - gRPC", "lower quartile", "upper quartile")


@dataclass(frozen=True)
class Seen:
    """One answer: seconds to its first token, and of each later one; how many tokens came."""

    ttft: float
    each: float
    tokens: int


Ask = Callable[[], AsyncIterator[float]]  # when it is sent, then the arrival of each token, as of time.perf_counter()


@contextmanager
def served() -> Iterator[tuple[Record, int]]:
    """Lab 02's stack with 32 slots, and the door before it: the stack's record and the door's port."""
    session = Session.open(Silent())
    lab, _ = session.catalog.stack(STACK)
    options = UpOptions(Choices(set={"slots": MANY, "step_ms": 10, "token_ms": 0.1}), "local", "auto", 300.0)
    with ephemeral(session, lab, STACK, options) as handle:
        (port,) = ports.free_ports("127.0.0.1", 1)
        door.beside(session.workspace, handle.record, port).do(Silent())
        yield handle.record, port


def run(rounds: int) -> dict[str, Any]:
    """Medians of both ways, and of what the door adds, over the rounds."""
    found: dict[str, dict[str, list[float]]] = {}
    with served() as (record, port):
        for streams in (FEW, MANY):
            for number in range(rounds * PAIRS):
                measure = partial(_both, record.endpoints.grpc, port, streams, door_first=bool(number % 2))
                for way, values in undisturbed(measure).items():
                    for name, value in values.items():
                        found.setdefault(f"{name}, {streams} streams", {}).setdefault(way, []).append(value)
    first, token = (_more(found[f"{name}, {FEW} streams"]) for name in ("TTFT ms", "ms per token"))
    rate = found[f"tokens/s, {MANY} streams"]
    share = statistics.median(door / grpc for door, grpc in zip(rate["door"], rate["gRPC"], strict=True))
    print(table([_row(name, ways) for name, ways in found.items()], HEADER, right=range(1, 6)))
    more, slower = statistics.median(first), statistics.median(token)
    met = more <= TTFT_MS and slower <= TOKEN_MS and share >= SHARE
    load = os.getloadavg()[0]
    verdict = "met" if met else "not met"
    print(
        f"{verdict}: TTFT {more:+.2f} ms (at most {TTFT_MS:+}), a token {slower:+.3f} ms (at most "
        f"{TOKEN_MS:+}), {share:.2f} of the tokens/s (at least {SHARE}); load of the machine {load:.1f}"
    )
    return {"rounds": found, "load": load, "ttft_more_ms": more, "token_more_ms": slower, "tokens_per_s_ratio": share}


def _more(ways: dict[str, list[float]]) -> list[float]:
    """What the door adds in each measurement of both."""
    return [door - grpc for door, grpc in zip(ways["door"], ways["gRPC"], strict=True)]


def _row(name: str, ways: dict[str, list[float]]) -> list[str]:
    low, middle, high = statistics.quantiles(_more(ways), n=4)
    medians = (statistics.median(ways[way]) for way in ("gRPC", "door"))
    return [name, *(f"{one:.2f}" for one in medians), f"{middle:+.3f}", f"{low:+.3f}", f"{high:+.3f}"]


def _both(endpoint: str, port: int, streams: int, door_first: bool) -> dict[str, dict[str, float]]:
    async def measure() -> dict[str, dict[str, float]]:
        async with InferenceServerClient(endpoint) as client:
            ways: dict[str, Ask] = {"gRPC": lambda: _grpc(client), "door": lambda: _http(port)}
            order = [*reversed(ways)] if door_first else [*ways]
            return {way: await _load(ways[way], streams) for way in order}

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
    began, *times = [at async for at in ask()]
    if len(times) < TOKENS // 2:
        raise RuntimeError(f"{len(times)} tokens came of {TOKENS}")
    return Seen(times[0] - began, (times[-1] - times[0]) / (len(times) - 1), len(times))


async def _grpc(client: InferenceServerClient) -> AsyncIterator[float]:
    text = InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[PROMPT.encode()]], dtype=np.object_))

    async def one() -> AsyncIterator[dict[str, Any]]:
        parameters = {"max_tokens": TOKENS, "ignore_eos": True}
        yield {"model_name": MODEL, "inputs": [text], "parameters": parameters}

    yield time.perf_counter()
    async for result, error in client.stream_infer(one()):
        if error:
            raise error
        if result.as_numpy("text_output")[0][0]:  # half a character has no text, and the door sends none
            yield time.perf_counter()


async def _http(port: int) -> AsyncIterator[float]:
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield time.perf_counter()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    try:
        while not (line := await reader.readline()).startswith(b"data: [DONE]"):
            if not line:
                raise RuntimeError("the door closed the connection")
            if line.startswith(b"data: ") and json.loads(line[6:])["choices"][0]["text"]:
                yield time.perf_counter()
    finally:
        writer.close()
