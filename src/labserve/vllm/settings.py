"""The words of ``tensorrt_llm/config.pbtxt`` as vLLM's engine arguments, and what vLLM cannot do, refused by name."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labsched.features import DRAFT, NONE, PROMPT_LOOKUP, RECOMPUTE, Features, InForce
from labsched.kv_budget import CACHE_BYTES, NULL_BLOCKS, KVBudget, number_bytes
from labserve.model_shape import ModelShape, kv_budget
from labserve.processor import has_bf16
from labserve.vllm.grammars import BACKEND

Word = Callable[[str], str]  # a parameter of config.pbtxt; "" if there is none

STEP_TOKENS = {"cpu": 256, "cuda": 8192}  # of one step, where max_num_tokens is not given
BLOCK_SIZE = 32  # tokens; vLLM's attention for CPUs is written for multiples of it
ORDERS = ("fcfs", "priority")  # vllm/config/scheduler.py: SchedulerPolicy
HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # vllm/v1/attention/backends/cpu_attn.py
DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "n_head", "n_inner")  # by the ranks
NGRAM = 3  # longest text that prompt lookup looks up, in tokens
COMPILED, GRAPHED = "compiled", "graphs"
EXECUTIONS: dict[str, dict[str, Any]] = {  # how the kernels of a step are launched
    "eager": {"enforce_eager": True},  # one by one, from Python
    # A step in which every request decodes is one graph, for each size of batch; one with a prompt is eager.
    GRAPHED: {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}},
    COMPILED: {},  # vLLM's own default: torch.compile, and graphs of its kernels
}
GRAPHS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))  # vllm/config/vllm.py: batches that have a graph by default
GPU_SHARE = 0.05  # of its memory that must be free for vLLM to look at it


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """vLLM's settings: `arguments` of `vllm.EngineArgs`, and the same in the labs' terms."""

    arguments: dict[str, Any]
    kv: KVBudget
    features: Features
    max_running: int
    longest: int  # tokens of one sequence, prompt and answer

    @classmethod
    def of(cls, word: Word, shape: ModelShape, device: str = "cpu") -> "VllmSettings":
        """From a configuration's words; an empty one is not given.

        Args:
            device: "cpu" or "cuda:N".

        Raises:
            ValueError: vLLM, or its build for CPUs, cannot do it.
        """
        gpu = device != "cpu"
        _refuse(word)
        if not gpu:
            _refuse_heads("model", shape)
            if word("speculation") == DRAFT:
                _refuse_heads("draft_model", ModelShape.of(word("draft_model")))
        ranks = int(word("tp_size") or 1)
        if ranks > 1:
            _refuse_ranks(word("gpt_model_path"), ranks)
        features = _features(word, STEP_TOKENS[device.partition(":")[0]])
        limit = int(word("max_num_sequences") or 16)
        fp32 = word("exact") == "true" or (not gpu and not has_bf16())
        cache = word("kv_cache_dtype") or "auto"
        block_size = int(word("block_size") or BLOCK_SIZE)
        token_bytes = shape.token_values * number_bytes(fp32, cache) // ranks  # in each rank
        kv = kv_budget(word, shape, limit, device, token_bytes, block_size)
        longest = min(shape.context, kv.tokens)
        if not features.chunked_context and features.max_num_tokens < longest:
            raise ValueError(
                f"max_num_tokens: {features.max_num_tokens} are too few for a prompt of {longest} in one piece"
            )
        if features.max_num_tokens < limit * (1 + features.num_assistant_tokens):
            raise ValueError(
                f"max_num_tokens: {features.max_num_tokens} are not a token for each of max_num_sequences={limit}"
            )
        # What the cache takes is said in bytes. vLLM by itself wants 0.92 of the GPU, where others compute too.
        share = {"gpu_memory_utilization": GPU_SHARE} if gpu else {}
        arguments = {
            **share,
            "model": word("gpt_model_path"),
            "dtype": "float32" if fp32 else "auto",
            "async_scheduling": word("async_scheduling") == "true",  # else a step is over when it returns
            "disable_log_stats": True,
            "generation_config": "vllm",  # requests say how tokens are chosen, not the model's folder
            "max_model_len": longest,
            "max_num_seqs": limit,
            "max_num_batched_tokens": features.max_num_tokens,
            "enable_chunked_prefill": features.chunked_context,
            "enable_prefix_caching": features.kv_cache_reuse,
            "scheduling_policy": word("scheduling") or "fcfs",
            "block_size": block_size,
            "num_gpu_blocks_override": kv.blocks + NULL_BLOCKS,
            "kv_cache_memory_bytes": kv.reserved(token_bytes),
            "kv_cache_dtype": cache,
            # No white space between values: a small model that likes it would never end.
            "structured_outputs_config": {"backend": BACKEND, "disable_any_whitespace": True},
            **_execution(word("execution") or "eager", limit, features),
            **_speculation(features),
            **({"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"} if ranks > 1 else {}),
        }
        return cls(arguments, kv, features, limit, longest)

    @classmethod
    def of_engine(cls, arguments: dict[str, Any], config: Any) -> "VllmSettings":
        """The values in force in an engine that was made from `arguments`, by its `VllmConfig`."""
        scheduler, cache, draft = config.scheduler_config, config.cache_config, config.speculative_config
        speculation = NONE
        if draft:
            speculation = PROMPT_LOOKUP if draft.method == "ngram" else DRAFT
        features = Features(
            chunked_context=scheduler.enable_chunked_prefill,
            max_num_tokens=scheduler.max_num_batched_tokens,
            kv_cache_reuse=cache.enable_prefix_caching,
            speculation=speculation,
            num_assistant_tokens=draft.num_speculative_tokens if draft else 0,
        )
        kv = KVBudget(cache.num_gpu_blocks - NULL_BLOCKS, cache.block_size)
        longest = min(config.model_config.max_model_len, kv.tokens)
        return cls(arguments, kv, features, scheduler.max_num_seqs, longest)

    def in_force(self, word: Word, config: Any) -> list[InForce]:
        """For ``labserve.observe.recorder.note_in_force``: what vLLM made of the words.

        Args:
            config: the engine's `VllmConfig`.
        """
        scheduler, cache = config.scheduler_config, config.cache_config
        asked = word("asked_batch_scheduler_policy") or word("batch_scheduler_policy")
        always = "vLLM admits a request when its prompt fits, and preempts when memory runs out"
        rows = [
            ("max_num_sequences", "max_num_seqs", scheduler.max_num_seqs),
            ("max_num_tokens", "max_num_batched_tokens", scheduler.max_num_batched_tokens),
            ("enable_chunked_context", "enable_chunked_prefill", scheduler.enable_chunked_prefill),
            ("enable_kv_cache_reuse", "enable_prefix_caching", cache.enable_prefix_caching),
            ("max_tokens_in_paged_kv_cache", "num_gpu_blocks, with the null block", cache.num_gpu_blocks),
            ("block_size", "", cache.block_size),
            ("kv_cache_dtype", "", cache.cache_dtype),
            ("scheduling", "scheduling_policy", scheduler.policy),
        ]
        values = []
        for name, theirs, value in rows:
            effective = str(value).lower().removeprefix("torch.")
            values.append(InForce(name, word(name), effective, f"vLLM's {theirs}" if theirs else ""))
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        return [
            InForce("batch_scheduler_policy", asked, "max_utilization", "" if asked == "max_utilization" else always),
            *values,
            InForce("dtype", "", dtype),
            InForce("async_scheduling", word("async_scheduling"), str(bool(scheduler.async_scheduling)).lower()),
            InForce("tp_size", word("tp_size"), str(config.parallel_config.tensor_parallel_size)),
            InForce("speculation", self.features.speculation, self.features.speculation),
            InForce("preemption", RECOMPUTE, RECOMPUTE),
        ]


def _refuse(word: Word) -> None:
    if word("preemption") not in ("", RECOMPUTE):
        raise ValueError(f"preemption: vLLM cannot do '{word('preemption')}'; it computes a preempted request again")
    if (word("scheduling") or "fcfs") not in ORDERS:
        raise ValueError(f"scheduling: vLLM has no '{word('scheduling')}'; it has: {', '.join(ORDERS)}")
    if (word("execution") or "eager") not in EXECUTIONS:
        raise ValueError(f"execution: '{word('execution')}' is not one of {', '.join(EXECUTIONS)}")
    if word("async_scheduling") == "true" and word("speculation") == PROMPT_LOOKUP:
        raise ValueError("async_scheduling: prompt lookup needs the text of one step before it decides about the next")
    if (word("kv_cache_dtype") or "auto") not in CACHE_BYTES:
        raise ValueError(
            f"kv_cache_dtype: vLLM on a CPU cannot do '{word('kv_cache_dtype')}'; it can: {', '.join(CACHE_BYTES)}"
        )


def _refuse_heads(name: str, shape: ModelShape) -> None:
    if shape.head_dim not in HEADS:
        sizes = ", ".join(map(str, HEADS))
        raise ValueError(f"{name}: its attention heads have {shape.head_dim} numbers; vLLM on a CPU takes {sizes}")


def _refuse_ranks(folder: str, ranks: int) -> None:
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    for name in DIVIDED:
        if config.get(name, 0) % ranks:
            raise ValueError(f"tp_size: {ranks} ranks cannot share the model's {name} of {config[name]:,}")


def _features(word: Word, step_tokens: int) -> Features:
    chunked = word("enable_chunked_context") != "false"
    speculation = word("speculation") or NONE
    drafted = int(word("num_assistant_tokens") or 4) if speculation != NONE else 0
    return Features(
        chunked_context=chunked,
        max_num_tokens=int(word("max_num_tokens") or step_tokens),
        kv_cache_reuse=word("enable_kv_cache_reuse") == "true",
        speculation=speculation,
        num_assistant_tokens=drafted,
        draft_model=word("draft_model") if speculation == DRAFT else None,
    )


def _execution(name: str, limit: int, features: Features) -> dict[str, Any]:
    """vLLM captures no graph of more requests than `max_num_seqs`: with 98, batches of 97 and 98 would be eager."""
    made = EXECUTIONS[name]
    if name != GRAPHED or features.speculation != NONE:
        return made
    sizes = sorted({size for size in GRAPHS if size < limit} | {min(limit, GRAPHS[-1])})
    return {"compilation_config": made["compilation_config"] | {"cudagraph_capture_sizes": sizes}}


def _speculation(features: Features) -> dict[str, Any]:
    tokens = {"num_speculative_tokens": features.num_assistant_tokens}
    if features.speculation == PROMPT_LOOKUP:
        return {"speculative_config": {"method": "ngram", "prompt_lookup_max": NGRAM, "prompt_lookup_min": 1, **tokens}}
    if features.speculation == DRAFT:
        return {"speculative_config": {"method": "draft_model", "model": features.draft_model, **tokens}}
    return {}
