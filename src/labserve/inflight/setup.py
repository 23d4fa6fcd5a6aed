"""The scheduler and the engine behind ``tensorrt_llm``, made from the words of its ``config.pbtxt``."""

from collections.abc import Callable
from pathlib import Path

from labsched.features import InForce
from labsched.order import Order, order
from labsched.own import FILE, names_written, scheduler_beside
from labsched.pace import Pace
from labsched.policy import BATCHING, effective_policy
from labsched.scheduler import Scheduler
from labserve.inflight.engines import Setup, open_engine
from labserve.inflight.logprobs import LogProbs
from labserve.model_shape import ModelShape
from labserve.vllm.setup import set_up_vllm


def open_scheduler(word: Callable[[str], str], device: str, beside: Path | None = None) -> Setup:
    """The scheduler that a model's configuration asks for, with its engine: the labs' own, or vLLM's.

    See `set_up_scheduler` and `set_up_vllm`.

    Args:
        beside: the folder of model.py, in which a ``scheduler.py`` may take the place of either.
    """
    if word("engine") == "vllm":
        return set_up_vllm(word, device, beside)
    return set_up_scheduler(word, device, scheduler_beside(beside) if beside else Scheduler)


def set_up_scheduler(word: Callable[[str], str], device: str, kind: type[Scheduler]) -> Setup:
    """Load the engine and warm it up.

    Args:
        word: a parameter of the model's config.pbtxt, "" if there is none.
        device: "cpu" or "cuda:N".
        kind: the scheduler's class: the shipped one, or a learner's.

    Raises:
        ValueError: a word is unknown, or the engine cannot do what is asked of it.
    """
    batching = word("gpt_model_type")
    if batching not in BATCHING:
        raise ValueError(f"gpt_model_type: '{batching}' is not one of {', '.join(BATCHING)}")
    static = BATCHING[batching]
    asked = word("asked_batch_scheduler_policy") or word("batch_scheduler_policy")
    policy, reason = effective_policy(asked, static)
    limit = int(word("max_num_sequences") or 16)
    shape = ModelShape.of(word("gpt_model_path"))
    engine, kv, features = open_engine(word, shape, limit, device)
    asked_order = order(word("scheduling"))
    scheduler = kind(engine, kv, policy, limit, static, features, asked_order)
    scheduler.pace = Pace.of(word("pace"), word("pace_shape"), word("pace_slower") or "1", word("pace_table"))
    in_force = [
        InForce("batch_scheduler_policy", asked, policy.value, reason),
        *features.in_force(word),
        InForce("scheduling", word("scheduling"), *order_in_force(scheduler, asked_order, word("scheduling"))),
        InForce("pace", word("pace"), word("pace")),
    ]
    described = (
        f"{batching}, {policy.value}{reason and f' ({reason})'}: at most {limit} sequences, {kv.blocks:,} KV blocks of "
        f"{kv.block_size} tokens ({engine.cache_bytes / 2**20:,.0f} MiB)"
    )
    own = None if kind is Scheduler else FILE
    return Setup(scheduler, shape, kv, features, LogProbs(word), in_force, described, own)


def order_in_force(scheduler: Scheduler, asked: Order, name: str) -> tuple[str, str]:
    """Say by which order requests join, and why it is not the asked one, called ``name``, where it is another."""
    if scheduler.order is asked and "line" not in names_written(type(scheduler)):
        return name, ""
    return FILE, "its order takes the place of every other"
