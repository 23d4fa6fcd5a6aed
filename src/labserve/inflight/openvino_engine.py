"""OpenVINO GenAI's continuous batching pipeline as an engine of the scheduler."""

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from labsched.features import AUTO, DRAFT, NONE, PROMPT_LOOKUP, U8, Features
from labsched.kv_budget import KVBudget
from labsched.request import Sampling
from labserve.model_shape import ModelShape
from labserve.params import BadInput
from labserve.processor import threads_of

BLOCK_SIZE = 32  # tokens in a block of the paged cache; the CPU plugin knows no other
STEP_TOKENS = {"cpu": 256}  # of one step, where max_num_tokens is not given
SPECULATION = (PROMPT_LOOKUP, DRAFT)
SHARES = True  # blocks, among prompts that begin alike
STORES = (U8,)  # numbers of the KV cache
SCALE = 8  # bytes of the two fp32 numbers by which 8-bit ones are read: of a token's values, of a block's keys
NGRAM = 3  # equal tokens before a draft from the text, at most


@dataclass(slots=True, eq=False)
class OpenVinoHandle:
    """A sequence in the engine; `began`: its prompt is computed."""

    generation: Any
    began: bool = False


class OpenVinoEngine:
    """One compiled model.

    `exact` computes in fp32 throughout (the cache may still have another `kv_precision`); otherwise in the processor's
    fastest type (bf16 where it has it). Up to `batch` sequences may run at a time; the cache has a spare block for each
    of them beyond `kv`, so that the engine's own eviction never interferes with the scheduler's.
    """

    def __init__(self, folder: str, kv: KVBudget, batch: int, exact: bool, threads: int, features: Features) -> None:
        config = genai.SchedulerConfig()
        config.num_kv_blocks = kv.blocks + batch
        self.step_tokens = config.max_num_batched_tokens = features.max_num_tokens
        config.max_num_seqs = batch
        config.dynamic_split_fuse = True  # prompts share a step with decoding; the scheduler decides whether in pieces
        config.enable_prefix_caching = features.kv_cache_reuse
        threads = threads_of(threads, folder)
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if threads == 1:
            # With AMX some small models in bf16 divide by zero (OpenVINO 2026.4.1), and their process dies.
            os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # all but AMX
        if exact:
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        if features.kv_precision != AUTO:
            properties["KV_CACHE_PRECISION"] = features.kv_precision
        if features.speculation == PROMPT_LOOKUP:
            properties["prompt_lookup"] = True
        elif features.speculation == DRAFT:
            # As many blocks as the model itself has: each holds what it knows of the same tokens.
            draft = genai.draft_model(features.draft_model, "CPU", scheduler_config=config, **properties)
            properties["draft_model"] = draft
        self._pipeline = genai.ContinuousBatchingPipeline(folder, config, "CPU", properties)
        self._count = 0
        self._features = features
        self._unfinished: list[OpenVinoHandle] = []  # dropped before their prompts were computed

    def add(self, ids: list[int], limit: int, sampling: Sampling) -> OpenVinoHandle:
        """Begin a sequence and return its handle. Raises BadInput for what the engine cannot do."""
        if self._features.speculation != NONE and sampling.min_length and sampling.end_id is not None:
            # It forbids the end token by how many tokens there are before a step, and takes several in one.
            words = f"engine=openvino cannot keep it beside speculation={self._features.speculation}"
            raise BadInput("min_length", words)
        self._count += 1
        prompt = ov.Tensor(np.array([ids], dtype=np.int64))
        draft = self._features.num_assistant_tokens
        return OpenVinoHandle(self._pipeline.add_request(self._count, prompt, _config(limit, sampling, draft)))

    def step(self) -> None:
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        for handle in [handle for handle in self._unfinished if handle.generation.can_read()]:
            handle.generation.cancel()
            handle.began = True
            self._unfinished.remove(handle)

    def read(self, handle: OpenVinoHandle) -> tuple[list[int], bool]:
        """Raises RuntimeError if the engine gave the sequence up."""
        tokens: list[int] = []
        while handle.generation.can_read():
            for output in handle.generation.read().values():
                tokens += output.generated_ids
        handle.began = handle.began or bool(tokens)
        status = handle.generation.get_status()
        if status not in (genai.GenerationStatus.RUNNING, genai.GenerationStatus.FINISHED):
            raise RuntimeError(f"the engine gave the sequence up: {status}")
        return tokens, status == genai.GenerationStatus.FINISHED

    def drop(self, handle: OpenVinoHandle) -> None:
        if self.must_finish(handle):
            self._unfinished.append(handle)
        else:
            handle.generation.cancel()

    def must_finish(self, handle: OpenVinoHandle) -> bool:
        # A block is known by its tokens as soon as it is taken. If a prompt were given up in the middle of a block, the
        # next one that begins alike would find keys and values there that nothing has computed.
        return self._features.kv_cache_reuse and not handle.began

    def drafts(self, ids: Sequence[int], left: int) -> int:
        most = min(self._features.num_assistant_tokens, left - 1)
        return most if self._features.speculation == DRAFT else _in_the_text(ids, most)

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

    @staticmethod
    def token_bytes(shape: ModelShape, exact: bool, device: str, kv_precision: str = AUTO) -> int:
        """Bytes of one token: a number takes 1 with `U8`, else 4 in exact mode and at most 2 otherwise."""
        if kv_precision == U8:  # a head's values have a scale for each token, its keys one for each number and block
            heads = shape.token_values // shape.head_dim // 2
            return shape.token_values + heads * (SCALE + SCALE * shape.head_dim // BLOCK_SIZE)
        return shape.token_values * (4 if exact else 2)


def _in_the_text(ids: Sequence[int], most: int) -> int:
    """How many tokens prompt lookup drafts: what followed the same last few tokens when they came first.

    The longest match counts, of at most `NGRAM` tokens (or half of a text that is no longer). It is searched as bytes,
    which takes microseconds.
    """
    if most < 1:
        return 0
    text = array("I", ids)
    width, data = text.itemsize, text.tobytes()
    longest = NGRAM if len(ids) > NGRAM else len(ids) // 2
    for size in range(longest, 0, -1):
        end = data[-size * width :]
        byte = data.find(end)
        while byte % width:  # it begins in the middle of a token
            byte = data.find(end, byte + 1)
        following = len(ids) - byte // width - size
        if following > 0:
            return min(most, following)
    return 0


def _config(limit: int, sampling: Sampling, draft: int) -> Any:
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
    if draft:
        config.num_assistant_tokens = draft
        config.max_ngram_size = NGRAM
    return config
