"""A server's slots and memory, as the settings of a scheduler that is replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labsched.recording import Arrival, SchedulerSettings


@dataclass(frozen=True)
class PlayingField:
    """Slots, KV blocks and their tokens, and tokens of a step."""

    slots: int
    blocks: int
    block_size: int
    step_tokens: int

    def settings(self, arrivals: Sequence[Arrival]) -> SchedulerSettings:
        """The scheduler's settings. Prompts share KV blocks if the trace has their hashes."""
        words = {
            "engine": "openvino",
            "gpt_model_type": "inflight_fused_batching",
            "batch_scheduler_policy": "max_utilization",
            "max_num_sequences": str(self.slots),
            "enable_chunked_context": "true",
            "enable_kv_cache_reuse": str(any(arrival.prefixes for arrival in arrivals)).lower(),
            "scheduling": "fcfs",
        }
        return SchedulerSettings(words, self.blocks, self.block_size, self.step_tokens, 10**6, 10**6)
