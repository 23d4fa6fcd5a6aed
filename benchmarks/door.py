"""What the OpenAI API costs: TTFT, time per token and tokens/s through it and over bare gRPC, alternately in one run.

Both clients are lean (``benchmarks.door_clients``), and both ways get the same lengths of answers. "apart" is a load
whose answers differ in length, so that streams drift apart as those of independent clients do. "in step" is one whose
answers are equally long: all begin at the same moment, and each waits until the others' beginnings are processed.

A round measures both ways, every other round in the other order, and what counts is the median of the differences
within a round: a machine that drifts moves both. Processor time is counted besides, of the door and of both clients: it
says what a request and a token cost where others use the machine.

The stack is one whose steps take a set time, as on a GPU: the processor is free for the server and its clients.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import uvloop

from benchmarks.door_clients import Ask, OverGrpc, OverHttp, processor_ms
from benchmarks.steal import undisturbed
from labctl.labs.servers import ephemeral_stack
from labctl.listener import Silent
from labctl.options import Options
from labctl.runtimes import door
from labctl.runtimes.record import Record
from labctl.stack import ports
from labctl.stack.session import Session
from labkit.tables import format_table

STACK, MODEL, PROMPT = "two-servers", "apart-gpt2", "I have lived in"
TOKENS, FEW, MANY, EACH = 64, 8, 32, 4  # tokens of an answer, streams at a time, answers of each stream
SPREAD, SEED = 32, 28  # tokens by which answers are shorter or longer, where streams drift apart; seed of the lengths
SHORT, LONG = 4, 128  # tokens of the answers whose processor time is compared: its slope is that of a token
PAIRS = 5  # measurements of both ways in a round
TTFT_MS, TOKEN_MS, SHARE = 3.0, 0.5, 0.85  # the yardsticks: at most so much more at FEW, at least this share at MANY
APART, IN_STEP = "apart", "in step"
CASES = ((FEW, APART), (FEW, IN_STEP), (MANY, APART))
WAYS = ("gRPC", "door")
HEADER = ("median", *WAYS, "door - gRPC", "lower quartile", "upper quartile")
Lengths = Sequence[Sequence[int]]  # of the answers of each stream


@dataclass(frozen=True)
class Seen:
    """One answer: seconds to its first token, and of each later one; how many tokens came."""

    ttft: float
    each: float
    tokens: int


@contextmanager
def served() -> Iterator[tuple[Record, int]]:
    """Lab 02's stack with 32 slots, and the door before it: the stack's record and the door's port."""
    session = Session.open(Silent())
    lab, _ = session.catalog.stack(STACK)
    options = Options(set={"slots": MANY, "step_ms": 10, "token_ms": 0.1}, runtime="local", ports="auto", timeout=300.0)
    with ephemeral_stack(session, lab, STACK, options) as handle:
        (port,) = ports.free_ports(1)
        door.start_door_server(session.workspace, handle.record, port, Silent())
        yield handle.record, port


def _listener(port: int) -> int:
    """The process that listens on this port of loopback."""
    found = psutil.net_connections("tcp")
    (pid,) = {one.pid for one in found if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN}
    assert pid is not None
    return pid


def run(rounds: int) -> dict[str, Any]:
    """Medians of both ways, and of what the door adds, over the rounds."""
    found: dict[str, dict[str, list[float]]] = {}
    with served() as (record, port):
        process = _listener(port)
        costs = [uvloop.run(_costs(record.endpoints.grpc, port, process)) for _ in range(max(3, rounds))]
        for streams, case in CASES:
            lengths = _lengths(streams, SPREAD if case == APART else 0)
            for number in range(rounds * PAIRS):
                measure = partial(_both, record.endpoints.grpc, port, lengths, door_first=bool(number % 2))
                for way, values in undisturbed(measure).items():
                    for name, value in values.items():
                        found.setdefault(f"{name}, {streams} {case}", {}).setdefault(way, []).append(value)
    print(format_table([_row(name, ways) for name, ways in found.items()], HEADER, right=range(1, 6)))
    spent = {name: [statistics.median(one[name][at] for one in costs) for at in (0, 1)] for name in costs[0]}
    for name, (request, token) in spent.items():
        print(f"processor time, {name}: {request:.2f} ms a request, {token:.3f} ms a token")
    first, token = (statistics.median(_more(found[f"{name}, {FEW} {APART}"])) for name in ("TTFT ms", "ms per token"))
    rate = found[f"tokens/s, {MANY} {APART}"]
    share = statistics.median(door / grpc for door, grpc in zip(rate["door"], rate["gRPC"], strict=True))
    met = first <= TTFT_MS and token <= TOKEN_MS and share >= SHARE
    load = os.getloadavg()[0]
    print(
        f"{'met' if met else 'not met'}, {APART}: TTFT {first:+.2f} ms (at most {TTFT_MS:+}), a token {token:+.3f} ms "
        f"(at most {TOKEN_MS:+}), {share:.2f} of the tokens/s (at least {SHARE}); load of the machine {load:.1f}"
    )
    return {
        "rounds": found,
        "load": load,
        "ttft_more_ms": first,
        "token_more_ms": token,
        "tokens_per_s_ratio": share,
        "processor_ms": spent,
    }


def _lengths(streams: int, spread: int) -> Lengths:
    chosen = random.Random(SEED)
    return [[TOKENS + chosen.randint(-spread, spread) for _ in range(EACH)] for _ in range(streams)]


def _more(ways: dict[str, list[float]]) -> list[float]:
    """The door's extra time in each measurement of both."""
    return [door - grpc for door, grpc in zip(ways["door"], ways["gRPC"], strict=True)]


def _row(name: str, ways: dict[str, list[float]]) -> list[str]:
    low, middle, high = statistics.quantiles(_more(ways), n=4)
    medians = (statistics.median(ways[way]) for way in ("gRPC", "door"))
    return [name, *(f"{one:.2f}" for one in medians), f"{middle:+.3f}", f"{low:+.3f}", f"{high:+.3f}"]


def _both(endpoint: str, port: int, lengths: Lengths, door_first: bool) -> dict[str, dict[str, float]]:
    async def measure() -> dict[str, dict[str, float]]:
        found = {}
        for way in reversed(WAYS) if door_first else WAYS:
            async with _clients(way, endpoint, port, len(lengths)) as asks:
                await _answer(asks[0], TOKENS)  # warm
                found[way] = await _load(asks, lengths)
        return found

    return uvloop.run(measure())


@asynccontextmanager
async def _clients(way: str, endpoint: str, port: int, streams: int) -> AsyncIterator[list[Ask]]:
    """One client of each stream, each with its connection: over gRPC they share a channel."""
    async with AsyncExitStack() as stack:
        if way == "gRPC":
            yield [(await stack.enter_async_context(OverGrpc(endpoint, MODEL, PROMPT))).ask] * streams
        else:
            clients = [await OverHttp.to(port, MODEL, PROMPT) for _ in range(streams)]
            for one in clients:
                stack.callback(one.close)
            yield [one.ask for one in clients]


async def _load(asks: Sequence[Ask], lengths: Lengths) -> dict[str, float]:
    began = time.perf_counter()

    async def stream(ask: Ask, tokens: Sequence[int]) -> list[Seen]:
        return [await _answer(ask, count) for count in tokens]

    streams = await asyncio.gather(*map(stream, asks, lengths))
    seen = [one for each in streams for one in each]
    took = time.perf_counter() - began
    return {
        "TTFT ms": 1e3 * statistics.median(one.ttft for one in seen),
        "ms per token": 1e3 * statistics.median(one.each for one in seen),
        "tokens/s": sum(one.tokens for one in seen) / took,
    }


async def _answer(ask: Ask, tokens: int) -> Seen:
    began, *times = await ask(tokens)
    if len(times) < tokens // 2:
        raise RuntimeError(f"{len(times)} tokens came of {tokens}")
    return Seen(times[0] - began, (times[-1] - times[0]) / max(1, len(times) - 1), len(times))


async def _costs(endpoint: str, port: int, door_process: int) -> dict[str, tuple[float, float]]:
    """Processor time in ms of a request and of a token: of the door, and of the client of each way."""
    spent: dict[str, list[float]] = {}
    for way in WAYS:
        async with _clients(way, endpoint, port, FEW) as asks:
            await _answer(asks[0], TOKENS)  # warm
            for tokens, answers in ((SHORT, 2 * EACH * LONG // TOKENS), (LONG, EACH)):
                before = processor_ms(door_process), processor_ms(os.getpid())
                await _load(asks, [[tokens] * answers] * FEW)
                each = [
                    (processor_ms(process) - was) / (FEW * answers)
                    for process, was in zip((door_process, os.getpid()), before, strict=True)
                ]
                spent.setdefault(f"the client over {way}", []).append(each[1])
                if way == "door":
                    spent.setdefault("the door", []).append(each[0])
    slopes = {name: (long - short) / (LONG - SHORT) for name, (short, long) in spent.items()}
    return {name: (spent[name][0] - SHORT * token, token) for name, token in slopes.items()}
