"""How an engine behind ``tensorrt_llm`` chooses tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """In TensorRT-LLM's terms. Without `end_id` a sequence runs to its limit."""

    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    min_length: int = 0
    seed: int = 0
    end_id: int | None = None
