"""When a request may be admitted: the two policies, and the words for them in a configuration."""

from collections.abc import Callable
from enum import Enum

BATCHING = {"V1": True, "inflight_fused_batching": False, "inflight_batching": False}  # gpt_model_type: is it static?
GATHER_S = 0.005  # how long an idle engine waits for the rest of a static batch, by default


def gather_s(word: Callable[[str], str]) -> float:
    """Seconds that an idle engine waits at most for the rest of a static batch, by a configuration's words."""
    microseconds = word("gather_microseconds")
    return int(microseconds) / 1e6 if microseconds else GATHER_S


class Policy(Enum):
    """When a request may be admitted (TensorRT-LLM: `CapacitySchedulerPolicy`)."""

    MAX_UTILIZATION = "max_utilization"  # its prompt fits now; when memory runs out, a request is preempted
    GUARANTEED_NO_EVICT = "guaranteed_no_evict"  # its prompt and whole output fit, so it is never preempted


def effective_policy(asked: str, static: bool) -> tuple[Policy, str]:
    """The policy in force for the name in a configuration, and the reason if it is another policy.

    Raises:
        ValueError: there is no policy with that name.
    """
    words = {policy.value: policy for policy in Policy} | {"guaranteed_completion": Policy.GUARANTEED_NO_EVICT}
    if asked not in words:
        raise ValueError(f"batch_scheduler_policy: '{asked}' is not one of {', '.join(words)}")
    if static and words[asked] is Policy.MAX_UTILIZATION:
        return Policy.GUARANTEED_NO_EVICT, "V1 runs a batch to its end, so it takes only what fits to its end"
    if asked != words[asked].value:
        return words[asked], f"{asked} is the workshop's word for {words[asked].value}"
    return words[asked], ""
