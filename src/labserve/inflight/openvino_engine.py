"""OpenVINO GenAI's continuous batching pipeline behind the few verbs that the scheduler needs."""

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from labserve.inflight.features import DRAFT, PROMPT_LOOKUP, Features
from labserve.inflight.kv_budget import KVBudget
from labserve.inflight.sampling_options import Sampling
from labserve.model_shape import Shape

BLOCK_SIZE = 32  # tokens in a block of the paged cache; the CPU plugin knows no other
STEP_TOKENS = {"cpu": 256}  # of one step, where max_num_tokens is not given
SPECULATION = (PROMPT_LOOKUP, DRAFT)
NGRAM = 3  # tokens alike before a guess from the text, at most


class OpenVinoEngine:
    """One compiled model.

    `exact` computes in fp32 throughout; otherwise the processor's fastest type (bf16 where it has it). Up to `batch`
    sequences may run at a time; the cache has a spare block for each of them beyond `kv`, so that the engine's own
    eviction never interferes with the scheduler's.
    """

    def __init__(self, folder: str, kv: KVBudget, batch: int, exact: bool, threads: int, features: Features) -> None:
        config = genai.SchedulerConfig()
        config.num_kv_blocks = kv.blocks + batch
        self.step_tokens = config.max_num_batched_tokens = features.max_num_tokens
        config.max_num_seqs = batch
        config.dynamic_split_fuse = (
            True  # prompts go beside everybody else's next token; the scheduler says whether in pieces
        )
        config.enable_prefix_caching = features.kv_cache_reuse
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if exact:
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        self._guesses = features.num_assistant_tokens
        if features.speculation == PROMPT_LOOKUP:
            properties["prompt_lookup"] = True
        elif features.speculation == DRAFT:
            # As many blocks as the model itself has: each holds what it knows of the same tokens.
            draft = genai.draft_model(features.draft_model, "CPU", scheduler_config=config, **properties)
            properties["draft_model"] = draft
        self._pipeline = genai.ContinuousBatchingPipeline(folder, config, "CPU", properties)
        self._count = 0

    def add(self, ids: list[int], limit: int, sampling: Sampling) -> Any:
        """Begin a sequence and return its handle."""
        self._count += 1
        prompt = ov.Tensor(np.array([ids], dtype=np.int64))
        return self._pipeline.add_request(self._count, prompt, _config(limit, sampling, self._guesses))

    def step(self) -> None:
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()

    def read(self, handle: Any) -> tuple[list[int], bool]:
        tokens: list[int] = []
        while handle.can_read():
            for output in handle.read().values():
                tokens += output.generated_ids
        return tokens, handle.get_status() != genai.GenerationStatus.RUNNING

    def drop(self, handle: Any) -> None:
        handle.cancel()

    def warm_up(self) -> None:
        """Compile what is compiled at first use, so that the first request does not wait for it."""
        handle = self.add([0] * (BLOCK_SIZE + 1), 3, Sampling())
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        self.read(handle)

    @property
    def cache_bytes(self) -> int:
        """Memory of the KV cache as allocated."""
        return int(self._pipeline.get_metrics().kv_cache_size_in_bytes)


def token_bytes(shape: Shape, exact: bool) -> int:
    """Keys and values of one token: 4 bytes a number in exact mode, at most 2 otherwise."""
    return shape.token_values * (4 if exact else 2)


def _config(limit: int, sampling: Sampling, guesses: int) -> Any:
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = limit
    config.min_new_tokens = min(sampling.min_length, limit)
    config.do_sample = sampling.sample
    config.ignore_eos = sampling.end_id is None
    if sampling.end_id is not None:
        config.set_eos_token_id(sampling.end_id)
    if sampling.sample:
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        config.rng_seed = sampling.seed
        if sampling.top_k:
            config.top_k = sampling.top_k
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty = sampling.presence_penalty
    if guesses:
        config.num_assistant_tokens = guesses
        config.max_ngram_size = NGRAM
    return config
