"""A process that decodes for each line it reads: one side of ``benchmarks/decode.py``, which asks several in turn.

    python -m benchmarks.decode_worker labs FOLDER PRECISION      lab 02's own loop; "" for an old checkout
    python -m benchmarks.decode_worker openvino FOLDER PRECISION  OpenVINO GenAI, one step after the other
    python -m benchmarks.decode_worker inflight:ENGINE FOLDER PRECISION  an engine of labs 03 and 05 with its scheduler

For each line on stdin: as many random prompts as it says (``BATCH`` if nothing), continued; on stdout, as JSON, the
seconds of the first step (the prompts), the median of the others, and their number.
"""

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

BATCH, PROMPT, NEW, THREADS = 8, 128, 48, 2
Once = Callable[[int], list[float]]  # as many sequences; the seconds of each step


def labs(folder: str, precision: str) -> Once:
    from benchmarks import outside_triton  # noqa: F401
    from labserve.gpt2.decoders import CachedDecoder
    from labserve.gpt2.model import GPT2
    from labserve.gpt2.sequences import Sequence
    from labserve.text.detok import Detokenizer
    from labserve.text.prompts import open_tokenizer
    from labserve.text.sampling import Sampler

    tokenizer = open_tokenizer(folder)
    model = GPT2(folder, threads=THREADS, **({"precision": precision} if precision else {}))
    decoder = CachedDecoder(model, BATCH)

    def once(sequences: int) -> list[float]:
        batch = [
            Sequence(prompt, PROMPT, PROMPT + NEW, None, Sampler(), Detokenizer(tokenizer))
            for prompt in prompts(model.vocabulary, sequences)
        ]
        seconds = []
        while not batch[0].finished:
            began = time.perf_counter()
            decoder.step(batch)
            seconds.append(time.perf_counter() - began)
        for sequence in batch:
            decoder.release(sequence)
        return seconds

    return once


def openvino(folder: str, precision: str) -> Once:
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

    def once(sequences: int) -> list[float]:
        nonlocal count
        handles = []
        for prompt in prompts(1_000, sequences):
            count += 1
            handles.append(pipeline.add_request(count, ov.Tensor(np.array([prompt], dtype=np.int64)), asked))
        seconds = []
        while pipeline.has_non_finished_requests():
            began = time.perf_counter()
            pipeline.step()
            seconds.append(time.perf_counter() - began)
        return seconds

    return once


def inflight(engine: str, folder: str, precision: str) -> Once:
    """``engine`` behind its scheduler, as ``tensorrt_llm`` has it; in fp32, or in the precision that it chooses."""
    from labsched.request import Request, Sampling
    from labserve.inflight.setup import open_scheduler

    words = {
        "engine": engine,
        "gpt_model_type": "inflight_fused_batching",
        "batch_scheduler_policy": "max_utilization",
        "gpt_model_path": folder,
        "max_num_sequences": str(BATCH),
        "max_num_tokens": str(BATCH * PROMPT),  # all prompts in the first step, as lab 02's loop has them
        "enable_chunked_context": "true",
        "kv_cache_free_gpu_mem_fraction": "0.9",
        "kv_cache_memory_mib": "1024",
        "exact": str(precision == "fp32").lower(),
        "threads": str(THREADS),
    }
    scheduler = open_scheduler(lambda name: words.get(name, ""), "cpu").scheduler
    count = 0

    def once(sequences: int) -> list[float]:
        nonlocal count
        for prompt in prompts(300, sequences):
            count += 1
            scheduler.submit(Request(str(count), prompt, NEW, Sampling(), number=count))
        seconds = []
        while not scheduler.idle:
            began = time.perf_counter()
            ended = scheduler.step().finished
            seconds.append(time.perf_counter() - began)
            if failed := [request.error for request in ended if request.error]:
                raise failed[0]
        return seconds

    return once


def prompts(vocabulary: int, sequences: int) -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(sequences)]


def main() -> None:
    kind, folder, precision = sys.argv[1:]
    sys.path[:0] = filter(None, [os.environ.get("LABS_PACKAGES")])
    name, _, engine = kind.partition(":")
    makes: dict[str, Callable[[str, str], Once]] = {
        "labs": labs,
        "openvino": openvino,
        "inflight": lambda *asked: inflight(engine, *asked),
    }
    once = makes[name](folder, precision)
    print("ready", flush=True)
    for line in sys.stdin:
        first, *others = once(int(line.strip() or BATCH))
        print(json.dumps({"first": first, "step": statistics.median(others), "steps": 1 + len(others)}), flush=True)


if __name__ == "__main__":
    main()
