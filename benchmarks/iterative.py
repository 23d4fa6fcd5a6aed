"""Lab 02's yardsticks, on GPT-2's true 124M shape: what the KV cache is worth, what Triton costs, a newcomer's wait."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from labctl.listener import Silent
from labctl.measure.clients.stream import TextStream
from labctl.measure.evidence import steplog
from labctl.measure.records import RequestRecord
from labctl.orchestrator.plan import Choices
from labctl.orchestrator.run import ephemeral
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import Up, UpOptions
from labctl.tables import table

MODEL = "random:gpt2"
CLIENTS, PROMPT, NEW = 8, 128, 64
TIMEOUT_S = 600.0
TEXT = (
    "On Monday the old baker walked to the market, and on Tuesday a sailor painted his boat in the harbour. "
    "Nobody knows why the garden near the river is so quiet, but every spring the people go there after lunch. "
)


def run(rounds: int) -> dict[str, Any]:
    """Measure, print and return everything. Ratios are of medians over ``rounds``."""
    session = Session.open(Silent())
    loops = {cache: plain_loop(session, cache) for cache in (False, True)}
    served: dict[bool, list[float]] = {}
    with stack(session, kv_cache=False) as handle:
        served[False] = [throughput(handle) for _ in range(max(1, rounds - 1))]
    with stack(session, kv_cache=True) as handle:
        throughput(handle)
        served[True] = [throughput(handle) for _ in range(rounds)]
        newcomer = newcomers(session, handle, rounds)
    loops[True] = (loops[True] + plain_loop(session, True)) / 2  # before and after: the machine's speed drifts
    off, on = (statistics.median(served[cache]) for cache in (False, True))
    found = {
        "tokens_per_second": {"served": {"no cache": served[False], "kv cache": served[True]},
                              "plain loop": {"no cache": loops[False], "kv cache": loops[True]}},
        "kv_cache_over_none_served": on / off,
        "kv_cache_over_none_plain_loop": loops[True] / loops[False],
        "served_over_plain_loop": on / loops[True],
        "newcomer": newcomer,
    }  # fmt: skip
    rows = [
        ("iterative, no cache (the original's way)", f"{off:.1f}", f"{loops[False]:.1f}", f"{off / loops[False]:.2f}"),
        ("iterative + KV cache", f"{on:.1f}", f"{loops[True]:.1f}", f"{on / loops[True]:.2f}"),
        ("ratio", f"{on / off:.1f}", f"{loops[True] / loops[False]:.1f}", ""),
    ]
    print(f"{CLIENTS} concurrent, {PROMPT}-token prompts, {NEW} new tokens each, {MODEL}")
    print(table(rows, ("tokens/s", "through Triton", "plain loop", "Triton / loop"), right=(1, 2, 3)))
    print(
        f"\nnewcomer while {CLIENTS - 1} decode: TTFT {newcomer['ttft_ms']:.0f} ms"
        f" = own prefill {newcomer['prefill_ms']:.0f} ms"
        f" + {newcomer['steps_waited']:.1f} decode steps of {newcomer['step_ms']:.1f} ms (limit: 3)"
    )
    return found


def stack(session: Session, kv_cache: bool) -> Any:
    settings = {"model": MODEL, "kv_cache": kv_cache, "max_batch_size": CLIENTS}
    lab, name = session.catalog.stack("iterative")
    return ephemeral(session, lab, name, UpOptions(Choices(set=settings), "local", "auto", 300.0))


def prompt_of(tokens: int, tokenizer_dir: str, start: int = 0) -> str:
    """English text that the tokenizer spells in exactly ``tokens`` tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{tokenizer_dir}/tokenizer.json")
    ids = tokenizer.encode(TEXT * (2 + (start + tokens) // 20)).ids
    for at in range(start, len(ids) - tokens):
        text = tokenizer.decode(ids[at : at + tokens])
        if len(tokenizer.encode(text).ids) == tokens:
            return text
    raise ValueError(f"no text of exactly {tokens} tokens was found")


def throughput(handle: Up) -> float:
    """Tokens/s of ``CLIENTS`` requests sent at once."""
    with TextStream(handle.record.endpoints.grpc) as stream:
        prompts = [prompt_of(PROMPT, handle.record.tokenizer_dir, 7 * i) for i in range(CLIENTS)]
        records = [stream.send("iterative-gpt2", p, max_tokens=NEW, ignore_eos=True) for p in prompts]
        stream.wait(*records, timeout=TIMEOUT_S)
    return sum(r.output_tokens for r in records) / (max(r.end for r in records) - min(r.start for r in records))


def newcomers(session: Session, handle: Up, rounds: int) -> dict[str, float]:
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
        run_dir = session.workspace.run_dir(handle.record.stack)
        steps = steplog.read(run_dir, "iterative-gpt2", since=began)
        full = [s.ended - s.began for s in steps if s.batch == CLIENTS - 1 and not s.more.get("prefill")]
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


def plain_loop(session: Session, kv_cache: bool) -> float:
    """Tokens/s of the same decode loop without Triton, in a process of its own."""
    from labctl import weights

    folder = weights.pull(weights.parse(MODEL), session.workspace, lambda text: None).path
    code = (
        "import json, sys; from benchmarks.decode_loop import measure\n"
        f"r = measure({str(folder)!r}, {kv_cache}, batch={CLIENTS}, prompt={PROMPT}, new={NEW})\n"
        "print(json.dumps(r.tokens_per_second))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=session.workspace.root, capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout))
