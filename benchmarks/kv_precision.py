"""What `kv_precision=u8` buys and what it costs: blocks in the same bytes, and tokens that come out otherwise.

The engine computes in fp32 each time; only its KV cache differs. Bytes are the engine's own count of what it has
allocated. Each token of the fp32 cache's answers is asked for again behind the same text, so that one change does not
make all later tokens differ; whole answers are compared too.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks import outside_triton  # noqa: F401
from labctl.artifacts import engines, weights
from labctl.listener import Silent
from labctl.stack.session import Session
from labkit.client import dataset
from labkit.tables import format_table

MODEL = "shipped:tiny-llama"
PROMPTS, TOKENS, BLOCKS, TOGETHER = 16, 48, 128, 8
COLUMNS = ("KV cache", "bytes a token", "MiB", "blocks in the f32's bytes", "tokens changed", "answers changed")


def run(options: Any) -> dict[str, Any]:
    """Bytes, blocks, and changes against the fp32 cache, for each precision."""
    prompts = options.count or PROMPTS
    workspace = Session.open(Silent()).workspace
    folder = str(engines.request("openvino", MODEL, {"precision": "fp32"}).make(workspace, print))
    tokenizer = str(weights.parse_source(MODEL).make(workspace, print))
    with ProcessPoolExecutor(1, get_context("spawn")) as one:  # OpenVINO takes signals from the process that loads it
        exact = one.submit(measure, folder, tokenizer, prompts, "auto", None).result()
    with ProcessPoolExecutor(1, get_context("spawn")) as one:
        small = one.submit(measure, folder, tokenizer, prompts, "u8", exact["answers"]).result()
    rows = []
    for name, found in (("f32", exact), ("u8", small)):
        fits = exact["bytes"] * BLOCKS // found["bytes"]
        pairs = list(zip(exact["answers"], found["answers"], strict=True))
        changed = sum(
            a != b
            for ours, again in zip(exact["answers"], found["again"], strict=True)
            for a, b in zip(ours, again, strict=True)
        )
        answers = sum(a != b for a, b in pairs)
        rows.append((name, found["bytes"] / BLOCKS / found["block"], found["bytes"] / 2**20, fits, changed, answers))
    count = prompts * TOKENS
    cells = [(name, f"{size:.0f}", f"{mib:.1f}", *map(str, rest)) for name, size, mib, *rest in rows]
    print(f"{MODEL}: {prompts} prompts, {count} tokens, {BLOCKS} blocks")
    print(format_table(cells, COLUMNS, right=range(1, len(COLUMNS))))
    *_, more, changed, _ = rows[1]
    bought = f"{(more - BLOCKS) / changed:.1f} blocks for each changed token" if changed else "no token changed"
    print(f"{more - BLOCKS} more blocks in the same bytes; {changed} of {count} tokens changed: {bought}")
    return {"rows": [dict(zip(COLUMNS, row, strict=True)) for row in rows], "tokens": count}


def measure(folder: str, tokenizer: str, count: int, precision: str, answers: list[list[int]] | None) -> dict[str, Any]:
    """Bytes of the cache, greedy answers, and each token of ``answers`` (None: of its own) asked for again."""
    from tokenizers import Tokenizer

    from labsched.features import Features
    from labsched.kv_budget import KVBudget
    from labserve.inflight.openvino_engine import BLOCK_SIZE, OpenVinoEngine

    features = Features(max_num_tokens=256, kv_precision=precision)
    engine = OpenVinoEngine(folder, KVBudget(BLOCKS - TOGETHER, BLOCK_SIZE), TOGETHER, True, 1, features)
    words = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    prompts = [
        words.encode(item.prompt).ids for item in dataset.make_chats(lambda text: len(words.encode(text).ids), count)
    ]
    own = _answers(engine, prompts, TOKENS)
    again = []
    for prompt, answer in zip(prompts, answers or own, strict=True):
        texts = [prompt + answer[:known] for known in range(TOKENS)]
        again.append([token for (token,) in _answers(engine, texts, 1)])
    return {"bytes": engine.cache_bytes, "block": BLOCK_SIZE, "answers": own, "again": again}


def _answers(engine: Any, texts: list[list[int]], tokens: int) -> list[list[int]]:
    """Greedy answers, a few at a time."""
    from labsched.request import Sampling

    found: list[list[int]] = []
    for first in range(0, len(texts), TOGETHER):
        handles = [engine.add(text, tokens, Sampling()) for text in texts[first : first + TOGETHER]]
        made: list[list[int]] = [[] for _ in handles]
        open_ = set(range(len(handles)))
        while open_:
            engine.step()
            for place in sorted(open_):
                new, over = engine.read(handles[place])
                made[place] += new
                if over:
                    open_.remove(place)
        found += made
    return found
