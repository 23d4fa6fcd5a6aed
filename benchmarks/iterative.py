"""Lab 02's yardsticks, on GPT-2's true 124M shape: what the KV cache is worth, what Triton costs, a newcomer's wait."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

from labctl.cli.bench import account
from labctl.labs import bench
from labctl.labs.overhead import OverheadComparison
from labctl.labs.servers import ephemeral_stack
from labctl.listener import Silent
from labctl.options import Options
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labkit.client.ask import TextStream
from labkit.client.dataset import Count, Item
from labkit.evidence import steplog
from labkit.evidence.records import RequestRecord
from labkit.tables import format_table

MODEL = "random:gpt2"
CLIENTS, PROMPT, NEW = 8, 128, 64
TIMEOUT_S = 600.0
TEXT = (
    "On Monday the old baker walked to the market, and on Tuesday a sailor painted his boat in the harbour. "
    "Nobody knows why the garden near the river is so quiet, but every spring the people go there after lunch. "
)


def run(rounds: int) -> dict[str, Any]:
    """Measure, print and return everything: ratios are medians, of what was measured in turn."""
    session = Session.open(Silent())
    compared = {}
    for cache in (False, True):
        with stack(session, kv_cache=cache) as handle:
            lab, name = session.catalog.stack(handle.record.stack)
            prompts = [prompt_of(PROMPT, handle.record.tokenizer_dir, 7 * i) for i in range(CLIENTS)]
            items = [Item(prompt, NEW) for prompt in prompts]
            work = bench.OverheadWork(handle, bench.engine_of(lab, name, "cpu"), partial(given, items))
            turns = [(work.served()[0], work.alone()) for _ in range(rounds if cache else 1)]
            compared[cache] = OverheadComparison([served for served, _ in turns], [alone for _, alone in turns])
            newcomer = newcomers(session, handle, min(rounds, 3)) if cache else {}
    rates = {
        cache: tuple(
            statistics.median(CLIENTS * NEW / one.seconds for one in side) for side in (each.served, each.alone)
        )
        for cache, each in compared.items()
    }
    rows = [
        (title, *(f"{rate:.1f}" for rate in rates[cache]), f"{compared[cache].ratio:.2f}")
        for title, cache in (("iterative, no cache (the original's way)", False), ("iterative + KV cache", True))
    ]
    gain = [rates[True][side] / rates[False][side] for side in (0, 1)]
    print(f"{CLIENTS} concurrent, {PROMPT}-token prompts, {NEW} new tokens each, {MODEL}; {rounds} rounds in turn")
    print(
        format_table(
            [*rows, ("ratio", f"{gain[0]:.1f}", f"{gain[1]:.1f}", "")],
            ("tokens/s", "through Triton", "plain loop", "Triton / loop"),
            right=(1, 2, 3),
        )
    )
    print("\nwhere the difference goes, with the KV cache:")
    print(account(compared[True]))
    print(
        f"\nnewcomer while {CLIENTS - 1} decode: TTFT {newcomer['ttft_ms']:.0f} ms"
        f" = own prefill {newcomer['prefill_ms']:.0f} ms"
        f" + {newcomer['steps_waited']:.1f} decode steps of {newcomer['step_ms']:.1f} ms (limit: 3)"
    )
    return {
        "tokens_per_second": {str(cache): rates[cache] for cache in rates},
        "kv_cache_over_none": gain,
        "served_over_plain_loop": {str(cache): compared[cache].ratio for cache in compared},
        "rounds_s": {
            str(cache): [[one.seconds for one in side] for side in (each.served, each.alone)]
            for cache, each in compared.items()
        },
        "newcomer": newcomer,
    }


def given(items: list[Item], count: Count) -> list[Item]:
    """A workload that is there already."""
    return items


def stack(session: Session, kv_cache: bool) -> Any:
    settings = {"model": MODEL, "kv_cache": kv_cache, "max_batch_size": CLIENTS}
    lab, name = session.catalog.stack("iterative")
    return ephemeral_stack(session, lab, name, Options(set=settings, runtime="local", ports="auto", timeout=300.0))


def prompt_of(tokens: int, tokenizer_dir: str | None, start: int = 0) -> str:
    """English text that the tokenizer spells in exactly ``tokens`` tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{tokenizer_dir}/tokenizer.json")
    ids = tokenizer.encode(TEXT * (2 + (start + tokens) // 20)).ids
    for at in range(start, len(ids) - tokens):
        text = tokenizer.decode(ids[at : at + tokens])
        if len(tokenizer.encode(text).ids) == tokens:
            return text
    raise ValueError(f"no text of exactly {tokens} tokens was found")


def newcomers(session: Session, handle: RunningStack, rounds: int) -> dict[str, float]:
    """TTFT of a request that arrives while the others decode, in decode steps beyond its own prefill."""
    prompt = prompt_of(PROMPT, handle.record.tokenizer_dir)
    waits, alone, busy, steps_ms = [], [], [], []
    for _ in range(rounds):
        with TextStream(handle.record.endpoints.grpc) as stream:
            alone.append(first_token(stream, prompt))
        with TextStream(handle.record.endpoints.grpc) as stream:
            began = time.monotonic()
            others = [stream.send("iterative-gpt2", prompt, max_tokens=96, ignore_eos=True) for _ in range(CLIENTS - 1)]
            for record in others:
                stream.wait_first(record, TIMEOUT_S)
            while min(len(record.responses) for record in others) < 8:
                time.sleep(0.005)
            busy.append(first_token(stream, prompt))
            stream.wait(*others, timeout=TIMEOUT_S)
        run_dir = session.workspace.folder(handle.record.stack).run_dir()
        steps = steplog.read_step_log(run_dir, "iterative-gpt2", since=began)
        full = [s.over - s.began for s in steps if s.batch == CLIENTS - 1 and not s.prefill]
        steps_ms.append(statistics.median(full) * 1e3)
        waits.append((busy[-1] - alone[-1]) / steps_ms[-1])
    return {
        "ttft_ms": statistics.median(busy),
        "prefill_ms": statistics.median(alone),
        "step_ms": statistics.median(steps_ms),
        "steps_waited": statistics.median(waits),
    }


def first_token(stream: TextStream, prompt: str) -> float:
    """TTFT in ms of one short request."""
    record: RequestRecord = stream.send("iterative-gpt2", prompt, max_tokens=2, ignore_eos=True)
    stream.wait(record, timeout=TIMEOUT_S)
    return record.ttft_ms
