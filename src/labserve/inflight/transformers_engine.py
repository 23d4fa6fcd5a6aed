"""Hugging Face's continuous batching as an engine of the scheduler, for any GPU, or none.

transformers' own manager computes in a thread of its own; here each step is asked for, so that the scheduler
(labsched/scheduler.py) decides which requests are in the batch, as it does for the other engine.
"""

import itertools
import queue
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager, RequestState, RequestStatus

from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.request import Sampling
from labserve.model_shape import ModelShape
from labserve.params import BadInput
from labserve.processor import has_bf16, threads_of

BLOCK_SIZE = 32  # tokens in a block of the paged cache
STEP_TOKENS = {"cpu": 256, "cuda": 2048}  # of one step, where max_num_tokens is not given
SPECULATION: tuple[str, ...] = ()
# With allow_block_sharing, release 5.5.4 gives wrong answers as soon as two sequences compute the same block at a time.
SHARES = False
STORES: tuple[str, ...] = ()


@dataclass(slots=True)
class TransformersHandle:
    """A sequence in the engine, and how many of its tokens have been read."""

    state: RequestState
    read: int = 0


class TransformersEngine:
    """One model on one device ("cpu", "cuda:0").

    ``exact`` computes in fp32 throughout; otherwise in half precision, where the device has it. The cache has a spare
    block for each of ``batch`` sequences beyond ``kv``, so that the engine's own eviction never interferes with the
    scheduler's.
    """

    def __init__(
        self, folder: str, kv: KVBudget, batch: int, exact: bool, threads: int, features: Features, device: str = "cpu"
    ) -> None:
        torch.set_num_threads(threads_of(threads, folder))
        half = torch.bfloat16 if device == "cpu" else torch.float16
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            dtype=torch.float32 if in_fp32(exact, device) else half,
            attn_implementation="sdpa",
        )
        self.step_tokens = features.max_num_tokens
        self._manager = ContinuousBatchingManager(
            model.to(device),
            GenerationConfig(do_sample=False),
            ContinuousBatchingConfig(
                block_size=BLOCK_SIZE,
                num_blocks=kv.blocks + batch,
                max_batch_tokens=self.step_tokens,
                allow_block_sharing=False,  # see SHARES
                use_async_batching=False,  # a step is over when it returns
            ),
        )
        # What the manager's thread does first; these names are of the pinned release of transformers.
        self._manager.batch_processor = self._manager._create_batch_processor()
        self._processor = self._manager.batch_processor
        self._ids = itertools.count()

    def add(self, ids: list[int], limit: int, sampling: Sampling) -> TransformersHandle:
        """Begin a sequence and return its handle. Raises BadInput for what this engine cannot do."""
        _only_greedy(sampling)
        state = RequestState(str(next(self._ids)), list(ids), max_new_tokens=limit, eos_token_id=sampling.end_id)
        self._processor.scheduler.add_waiting_request(state)
        return TransformersHandle(state)

    def step(self) -> None:
        with torch.inference_mode():
            if self._processor.prepare_next_batch():
                self._manager._generation_step()
                self._processor.update_batch()
        finished = self._manager.output_router.output_queue  # `read` looks at the states themselves
        with suppress(queue.Empty):
            while True:
                finished.get_nowait()

    def read(self, handle: TransformersHandle) -> tuple[list[int], bool]:
        """Raises RuntimeError if the engine gave the sequence up."""
        state = handle.state
        if state.status is RequestStatus.FAILED:
            raise RuntimeError(state.error or "the engine gave the sequence up")
        tokens = state.generated_tokens[handle.read :]
        handle.read += len(tokens)
        return tokens, state.status is RequestStatus.FINISHED

    def drop(self, handle: TransformersHandle) -> None:
        self._processor.scheduler.set_request_cancellation(handle.state.request_id)

    def must_finish(self, handle: TransformersHandle) -> bool:
        return False

    def drafts(self, ids: Sequence[int], left: int) -> int:
        return 0

    def warm_up(self) -> None:
        """Compute once what is set up at first use, so that the first request does not wait for it."""
        handle = self.add([0] * (BLOCK_SIZE + 1), 3, Sampling())
        while not self.read(handle)[1]:
            self.step()

    @property
    def cache_bytes(self) -> int:
        """Memory of the KV cache as allocated."""
        cache = self._processor.cache
        return sum(t.numel() * t.element_size() for t in (*cache.key_cache, *cache.value_cache))

    @staticmethod
    def token_bytes(shape: ModelShape, exact: bool, device: str, kv_precision: str) -> int:
        """Keys and values of one token: 4 bytes a number in fp32, 2 otherwise."""
        return shape.token_values * (4 if in_fp32(exact, device) else 2)


def in_fp32(exact: bool, device: str) -> bool:
    return exact or (device == "cpu" and not has_bf16())


def _only_greedy(sampling: Sampling) -> None:
    neutral = Sampling(seed=sampling.seed, end_id=sampling.end_id)
    for name, word in (
        ("sample", "temperature, runtime_top_k, runtime_top_p"),
        ("repetition_penalty", "repetition_penalty"),
        ("presence_penalty", "presence_penalty"),
        ("min_length", "min_length"),
    ):
        if getattr(sampling, name) != getattr(neutral, name):
            raise BadInput(word, "engine=transformers always takes the likeliest token")
