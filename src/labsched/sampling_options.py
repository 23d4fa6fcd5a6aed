"""How an engine behind ``tensorrt_llm`` chooses tokens (vLLM: `SamplingParams`, vllm/sampling_params.py)."""

from dataclasses import dataclass, replace


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

    @property
    def resumable(self) -> bool:
        """Whether an engine that gets the answer so far as a prompt continues as if it had made the answer itself.

        It does not know the state of the random generator, nor which tokens a penalty on the answer alone applies to.
        """
        return not self.sample and not self.presence_penalty

    def after(self, made: int) -> "Sampling":
        """The same for an answer that already has `made` tokens."""
        return replace(self, min_length=max(0, self.min_length - made)) if made and self.min_length else self
