"""The scheduler and the engine behind ``tensorrt_llm``, made from the words of its ``config.pbtxt``."""

from collections.abc import Callable
from dataclasses import dataclass

from labserve.inflight.engine import Engine
from labserve.inflight.engines import open_engine
from labserve.inflight.features import Features
from labserve.inflight.kv_budget import KVBudget
from labserve.inflight.order import order
from labserve.inflight.policy import BATCHING, effective_policy
from labserve.inflight.scheduler import Scheduler
from labserve.model_shape import Shape


@dataclass(frozen=True, slots=True)
class Setup:
    """The scheduler and its engine; and the policy as asked, with the reason if another one is in force."""

    shape: Shape
    engine: Engine
    kv: KVBudget
    features: Features
    scheduler: Scheduler
    asked_policy: str
    reason: str


def set_up(word: Callable[[str], str], device: str, kind: type[Scheduler]) -> Setup:
    """Load the engine and warm it up.

    Args:
        word: a parameter of the model's config.pbtxt, "" where there is none.
        device: "cpu" or "cuda:N".
        kind: the scheduler's class: the shipped one, or a learner's.

    Raises:
        ValueError: a word is unknown, or the engine cannot do what is asked of it.
    """
    batching = word("gpt_model_type")
    if batching not in BATCHING:
        raise ValueError(f"gpt_model_type: '{batching}' is none of {', '.join(BATCHING)}")
    static = BATCHING[batching]
    asked = word("asked_batch_scheduler_policy") or word("batch_scheduler_policy")
    policy, reason = effective_policy(asked, static)
    limit = int(word("max_num_sequences") or 16)
    shape = Shape.of(word("gpt_model_path"))
    engine, kv, features = open_engine(word, shape, limit, device)
    scheduler = kind(engine, kv, policy, limit, static, features, order(word("scheduling")))
    return Setup(shape, engine, kv, features, scheduler, asked, reason)
