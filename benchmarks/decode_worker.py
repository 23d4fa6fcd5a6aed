"""A process that decodes for each line it reads: one side of ``benchmarks/decode.py``, which asks several in turn.

    python -m benchmarks.decode_worker labs FOLDER PRECISION      lab 02's own loop; "" for an old checkout
    python -m benchmarks.decode_worker openvino FOLDER PRECISION  OpenVINO GenAI, one step after the other

For each line on stdin: ``BATCH`` random prompts, continued; on stdout the seconds of the first step (the prompts) and
the median of the others, as JSON.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

BATCH, PROMPT, NEW, THREADS = 8, 128, 48, 2


def labs(folder: str, precision: str) -> Callable[[], list[float]]:
    from labserve.gpt2.decoders import CachedDecoder, step
    from labserve.gpt2.model import GPT2
    from labserve.gpt2.sequences import Sequence
    from labserve.text.detok import Detokenizer
    from labserve.text.prompts import open_tokenizer
    from labserve.text.sampling import Sampler

    tokenizer = open_tokenizer(folder)
    model = GPT2(folder, threads=THREADS, **({"precision": precision} if precision else {}))
    decoder = CachedDecoder(model, BATCH)

    def once() -> list[float]:
        batch = [
            Sequence(prompt, PROMPT, PROMPT + NEW, None, Sampler(), Detokenizer(tokenizer))
            for prompt in prompts(model.vocabulary)
        ]
        seconds = []
        while not batch[0].finished:
            began = time.perf_counter()
            step(decoder, batch)
            seconds.append(time.perf_counter() - began)
        for sequence in batch:
            decoder.release(sequence)
        return seconds

    return once


def openvino(folder: str, precision: str) -> Callable[[], list[float]]:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    config = genai.SchedulerConfig()
    config.num_kv_blocks = BATCH * (PROMPT + NEW + 64) // 32
    config.max_num_batched_tokens = BATCH * PROMPT  # all prompts in the first step, as the labs' loop has them
    config.max_num_seqs = BATCH
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": THREADS}
    if precision == "fp32":
        properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    pipeline = genai.ContinuousBatchingPipeline(folder, config, "CPU", properties)
    asked = genai.GenerationConfig(max_new_tokens=NEW, ignore_eos=True, do_sample=False)
    asked.apply_chat_template = False
    count = 0

    def once() -> list[float]:
        nonlocal count
        handles = []
        for prompt in prompts(1_000):
            count += 1
            handles.append(pipeline.add_request(count, ov.Tensor(np.array([prompt], dtype=np.int64)), asked))
        seconds = []
        while pipeline.has_non_finished_requests():
            began = time.perf_counter()
            pipeline.step()
            seconds.append(time.perf_counter() - began)
        return seconds

    return once


def prompts(vocabulary: int) -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(BATCH)]


def main() -> None:
    kind, folder, precision = sys.argv[1:]
    once = {"labs": labs, "openvino": openvino}[kind](folder, precision)
    print("ready", flush=True)
    for _ in sys.stdin:
        first, *others = once()
        print(json.dumps({"first": first, "step": statistics.median(others), "steps": 1 + len(others)}), flush=True)


if __name__ == "__main__":
    main()
