"""The engines that can stand behind ``tensorrt_llm``, by name; only the one that is chosen is imported."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from labsched.features import AUTO, Features, InForce
from labsched.kv_budget import KVBudget
from labserve.inflight.logprobs import LogProbs
from labserve.model_shape import ModelShape, kv_budget

ENGINES = {"openvino": "OpenVinoEngine", "transformers": "TransformersEngine"}


@dataclass(frozen=True, slots=True)
class Setup:
    """A scheduler with its engine, as a model's configuration asks for them."""

    scheduler: Any  # labsched's `Scheduler`, or vLLM's (labserve/vllm/engine.py)
    shape: ModelShape
    kv: KVBudget
    features: Features
    log_probs: LogProbs
    in_force: list[InForce]  # for `labctl status`
    described: str  # in one line, for the server's log
    own: str | None = None  # the learner's files that take the place of the scheduler, or of vLLM's arguments


def open_engine(
    word: Callable[[str], str], shape: ModelShape, batch: int, device: str
) -> tuple[Any, KVBudget, Features]:
    """The engine that a model's configuration names, warmed up, the KV cache that it may fill, and what is in force.

    Args:
        word: a parameter of the model's config.pbtxt, "" if there is none.
        batch: sequences that may run at a time.
        device: "cpu" or "cuda:N".

    Raises:
        ValueError: there is no such engine, it does not run there or cannot do what is asked of it, or the cache has
            no room for one block.
    """
    name = word("engine") or "openvino"
    if name not in ENGINES:
        raise ValueError(f"engine: '{name}' is not one of {', '.join(ENGINES)}")
    if name == "openvino" and device != "cpu":
        raise ValueError("engine: openvino computes on the processor; on a GPU take transformers")
    module = import_module(f"labserve.inflight.{name}_engine")
    kind = getattr(module, ENGINES[name])
    exact = word("exact").lower() == "true"
    usual = module.STEP_TOKENS[device.partition(":")[0]]
    features = Features.of(word, usual, batch, shape.context, module.SPECULATION, module.SHARES, module.STORES)
    stored = features.kv_precision
    token_bytes = own_bytes = kind.token_bytes(shape, exact, device, stored)
    if features.draft_model:
        draft = ModelShape.of(features.draft_model)
        if draft.vocabulary != shape.vocabulary:
            raise ValueError(f"draft_model: it has {draft.vocabulary:,} tokens, the model {shape.vocabulary:,}")
        token_bytes += kind.token_bytes(draft, exact, device, stored)
    kv = kv_budget(word, shape, batch, device, token_bytes, module.BLOCK_SIZE)
    where = {} if device == "cpu" else {"device": device}
    engine = kind(word("gpt_model_path"), kv, batch, exact, int(word("threads")), features, **where)
    engine.warm_up()
    if stored != AUTO and engine.cache_bytes > (kv.blocks + batch) * kv.block_size * own_bytes:
        features = replace(features, kv_precision=AUTO)  # the engine ignored the setting: `labctl status` says so
    return engine, kv, features
