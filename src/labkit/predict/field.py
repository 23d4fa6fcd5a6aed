"""The field of a game: a server's slots and memory, and the GPU whose step times it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labsched.contexts import Contexts
from labsched.pace import DEVICES, SHAPES, Pace, StepWork
from labsched.recording import Arrival, SchedulerSettings, StepRow


@dataclass(frozen=True)
class PlayingField:
    """The field of every game: slots, KV blocks and their tokens, tokens of a step, and a GPU's model."""

    slots: int = 32
    blocks: int = 160
    block_size: int = 16
    step_tokens: int = 512
    pace: Pace = field(default_factory=lambda: Pace(DEVICES["h100"], SHAPES["llama-2-7b"], 1.0))

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

    def step_time(self) -> Callable[[StepRow], float]:
        """The seconds of a step on the GPU; to be called for every step of a game, in order."""
        contexts = Contexts()

        def seconds(row: StepRow) -> float:
            work = zip(row.tokens, contexts.each(row), strict=True)
            return self.pace.seconds([StepWork(tokens, seen) for tokens, seen in work])

        return seconds

    def alone(self, arrival: Arrival) -> tuple[int, float]:
        """Steps and seconds that a request takes with the server to itself."""
        pieces = [
            StepWork(min(self.step_tokens, arrival.prompt - at), min(at + self.step_tokens, arrival.prompt))
            for at in range(0, arrival.prompt, self.step_tokens)
        ]
        work = [*pieces, *(StepWork(1, arrival.prompt + made) for made in range(1, arrival.made))]
        return len(work), sum(self.pace.seconds([piece]) for piece in work)


FIELD = PlayingField()
SERVED = PlayingField(blocks=80, block_size=32)  # the same on the labs' engine, whose blocks have 32 tokens
