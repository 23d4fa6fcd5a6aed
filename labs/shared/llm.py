"""A Llama behind preprocessing, an engine called tensorrt_llm, and postprocessing: for labs 03, 05, 06 and 08."""

from __future__ import annotations

from typing import Any, Literal

from labctl.lab import (
    BareEngine,
    Bench,
    LabSettings,
    ModelSource,
    Place,
    Probe,
    Replacement,
    Served,
    not_served,
    setting,
)

MODELS = ["preprocessing", "tensorrt_llm", "postprocessing", "ensemble"]
BENCH = Bench("ensemble", BareEngine("tensorrt_llm", "inflight"))
# Without streaming a text model answers `generate`, with it `generate_stream`, which serves both.
PROBES = {
    "ensemble": Probe({"text_input": "Hello", "max_tokens": 1, "bad_words": "", "stop_words": ""}, "generate_stream")
}
# Threads that wait for each other give the processor back soon: on a busy machine of two cores Hugging Face's models
# take 0.4 s for three tokens then, else 1.5 s; on a quiet one 0.14 s either way.
ENV = {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"}
IN_FLIGHT = "inflight_fused_batching"

Engine = Literal["openvino", "vllm", "tensorrt-llm", "transformers"]
Policy = Literal["max_utilization", "guaranteed_no_evict", "guaranteed_completion"]
LOGGED = {"engine": ["openvino", "vllm", "transformers"]}  # their steps are in a log: ours, and vLLM's
OPENVINO, VLLM, TENSORRT_LLM = {"engine": "openvino"}, {"engine": "vllm"}, {"engine": "tensorrt-llm"}
THREADS = (
    "CPU threads of {}; 0: one for weights of less than 16 MB, whose threads would only wait for each other, else two"
)


class LlmSettings(LabSettings):
    """The settings of the engine, and of what computes in it."""

    model: ModelSource = setting(
        "random:llama-100m", "Llama weights; hub:<id>@<revision> for real ones", gpu="random:llama-2-7b"
    )
    engine: Engine = setting(
        "openvino",
        "what computes behind tensorrt_llm; vllm has its own scheduler (on a CPU after labctl engines install vllm); "
        "transformers runs anywhere, tensorrt-llm on the gpu profile",
        gpu="vllm",
    )
    engine_precision: Literal["fp16", "fp32", "int8"] = setting(
        "fp16", "how the engine stores its weights", when=OPENVINO
    )
    exact: bool = setting(
        False,
        "compute in fp32 throughout (with engine_precision=fp32 the answers are those of Hugging Face)",
        when=LOGGED,
    )
    batch_scheduler_policy: Policy = setting(
        "guaranteed_no_evict",
        "admit what fits now and preempt later, or only what fits to its end (also called guaranteed_completion); vllm "
        "always does the first",
    )
    max_num_sequences: int = setting(16, "sequences in the running batch", gpu=64, ge=1, le=128)
    max_tokens_in_paged_kv_cache: int | None = setting(
        None, "bound of the KV cache in tokens; empty leaves it to the fraction", ge=32, le=100_000_000
    )
    kv_cache_free_gpu_mem_fraction: float = setting(
        0.9, "share that the KV cache may take of kv_cache_memory_mib, or of the GPU's free memory", ge=0.01, le=1.0
    )
    kv_cache_memory_mib: int | None = setting(
        None,
        "memory that is set aside for the KV cache; empty is 1,024 on a CPU, on a GPU what is free beside the weights, "
        "and no more than max_num_sequences of the longest requests fill",
        ge=1,
        le=1_000_000,
        when=LOGGED,
    )
    enable_chunked_context: bool = setting(
        True, "long prompts are computed in pieces, beside the next tokens of the others", gpu=False
    )
    max_num_tokens: int | None = setting(
        None,
        "tokens of one step at most; empty is 256 on a CPU; on a GPU 2,048 with transformers, 8,192 with vllm and "
        "tensorrt-llm, where V1 gets room for a whole batch of prompts",
        ge=1,
        le=1_000_000,
    )
    enable_kv_cache_reuse: bool = setting(
        False,
        "prompts with the same prefix share its keys and values; not with speculation",
        when={"engine": ["openvino", "vllm", "tensorrt-llm"], "speculation": "none"},
    )
    gather_microseconds: int = setting(
        5000,
        "how long an idle engine waits at most for the rest of a V1 batch, which nothing can join later",
        ge=0,
        le=10_000_000,
        when=LOGGED,
    )
    scheduling: Literal["fcfs", "shortest_first", "priority", "fair"] = setting(
        "fcfs",
        "which waiting request joins first; priority by the request parameter request_priority (1 is urgent), fair by "
        "its tenant",
        when=LOGGED,
    )
    scheduler: str | None = setting(
        None,
        "a scheduler of your own: a file below the checkout, such as my/scheduler.py; vllm asks it for line and victim",
        when=LOGGED,
    )
    preemption: Literal["recompute", "swap"] = setting(
        "recompute",
        "how a preempted request comes back under max_utilization; swap (its keys and values put aside) is refused by "
        "every engine",
        when=LOGGED,
    )
    speculation: Literal["none", "prompt_lookup", "draft"] = setting(
        "none",
        "draft the next tokens from the text or by a smaller model, and check them in one step",
        when={"engine": ["openvino", "vllm"]},
    )
    num_assistant_tokens: int = setting(4, "draft tokens of a step", ge=1, le=16, when={"engine": ["openvino", "vllm"]})
    draft_model: ModelSource = setting(
        "random:tiny-llama",
        "the smaller model of speculation=draft, with the same tokenizer",
        when={"speculation": "draft"},
    )
    async_scheduling: bool = setting(
        False,
        "vLLM decides a step while another is computed, so it computes one token too many for a request that ends; "
        "off while a clock holds it",
        gpu=True,
        when={"engine": "vllm", "speculation": ["none", "draft"]},
    )
    execution: Literal["eager", "graphs", "compiled"] = setting(
        "eager",
        "how a step is launched on a GPU; kernel by kernel from Python, as CUDA graphs where all decode, or by "
        "torch.compile",
        gpu="graphs",
        when=VLLM,
    )
    block_size: int = setting(
        32, "tokens of a block of vLLM's KV cache; a multiple of 32 on a CPU", ge=32, le=512, when=VLLM
    )
    tp_size: int = setting(
        1,
        "GPUs that each compute a share of every layer (vLLM's tensor_parallel_size); on a CPU, processes",
        ge=1,
        le=16,
        when=VLLM,
    )
    kv_cache_dtype: Literal["auto", "fp8"] = setting(
        "auto", "how the KV cache of vLLM stores numbers; auto is as the model computes", when=VLLM
    )
    kv_precision: Literal["auto", "u8"] = setting(
        "auto",
        "how the KV cache stores numbers; u8 is a byte each and the scales, so more blocks fit, and answers may change",
        when=OPENVINO,
    )
    pace: Literal["none", "h100", "h200", "h100-measured", "measured"] = setting(
        "none",
        "steps take as long as on this GPU, in slow motion; the tokens stay those of the small model. "
        "h100, h200 - what the card could do; h100-measured - what one did",
        when={"engine": ["openvino", "transformers"]},
    )
    pace_shape: Literal["llama-2-7b", "llama-3.1-8b"] = setting(
        "llama-2-7b", "the model whose steps the GPU of pace would compute, in 16 bits", when={"pace": ["h100", "h200"]}
    )
    pace_table: str = setting("none", "what steps cost, as labctl pace measure prints it", when={"pace": "measured"})
    pace_slower: float = setting(
        10,
        "times slower than that GPU, so that the small model keeps up",
        ge=1,
        le=1000,
        when={"pace": ["h100", "h200", "h100-measured", "measured"]},
    )
    decoupled_mode: bool = setting(False, "stream token by token; unary requests are refused then")
    threads: int = setting(0, THREADS.format("each model"), ge=0, le=256)
    max_batch_size: int = setting(
        64,
        "here the engine's own limit on the running batch, fixed when it is built",
        ge=1,
        le=2048,
        when=TENSORRT_LLM,
        instead="max_num_sequences",
    )
    max_input_len: int = setting(
        2048, "longest prompt that the engine is built for", ge=1, le=1_000_000, when=TENSORRT_LLM
    )
    max_output_len: int = setting(
        512, "longest answer that the engine is built for", ge=1, le=1_000_000, when=TENSORRT_LLM
    )
    quantization: Literal["none", "fp8"] = setting(
        "none", "fp8 needs compute capability 8.9 or newer (Ada, Hopper)", when=TENSORRT_LLM
    )


class EngineAlone(LlmSettings):
    """The same, where the engine is all that computes."""

    threads: int = setting(0, THREADS.format("the engine"), ge=0, le=256, when=LOGGED)


def llm(s: LlmSettings, at: Place, batching: str = IN_FLIGHT) -> Served:
    """The four models, with the engine of these settings; ``batching`` is the name of V1 or of batching in flight."""
    if s.engine == "tensorrt-llm":
        return _tensorrt_llm(s, at, batching)
    weights = at.weights(s.model)
    values: dict[str, Any] = {
        "instance_kind": at.instance_kind,
        "tokenizer_dir": weights.path,
        "run_dir": at.run_dir,
        "batch_scheduler_policy": s.batch_scheduler_policy.replace("guaranteed_completion", "guaranteed_no_evict"),
        "asked_batch_scheduler_policy": s.batch_scheduler_policy,
        "engine": s.engine,
        "engine_dir": weights.path,
        "max_num_sequences": s.max_num_sequences,
        "max_tokens_in_paged_kv_cache": s.max_tokens_in_paged_kv_cache,
        "kv_cache_free_gpu_mem_fraction": s.kv_cache_free_gpu_mem_fraction,
        "kv_cache_memory_mib": s.kv_cache_memory_mib,
        "enable_chunked_context": s.enable_chunked_context,
        "max_num_tokens": s.max_num_tokens,
        "enable_kv_cache_reuse": False,
        "gather_microseconds": s.gather_microseconds,
        "async_scheduling": False,
        "execution": None,
        "scheduling": s.scheduling,
        "preemption": s.preemption,
        "speculation": "none",
        "num_assistant_tokens": None,
        "draft_dir": None,
        "block_size": None,
        "kv_cache_dtype": None,
        "tp_size": None,
        "kv_precision": None,
        "pace": "none",
        "pace_shape": None,
        "pace_table": None,
        "pace_slower": None,
        "decoupled_mode": s.decoupled_mode,
        "exact": s.exact,
        "threads": s.threads,
    }
    if s.engine == "openvino":
        at.require("cpu", "engine=openvino")
        values["engine_dir"] = at.engine("openvino", s.model, precision=s.engine_precision).path
        values["kv_precision"] = s.kv_precision
        if s.speculation == "draft":
            values["draft_dir"] = at.engine("openvino", s.draft_model, precision=s.engine_precision).path
    if s.engine == "vllm":
        if s.scheduling in ("shortest_first", "fair"):
            raise not_served(
                f"engine=vllm scheduling={s.scheduling}", "vLLM's scheduler has two orders, fcfs and priority"
            )
        if s.scheduler and s.scheduling == "priority":
            raise not_served(
                "engine=vllm scheduler=FILE scheduling=priority", "the file and vLLM would have two orders"
            )
        if s.preemption == "swap":
            raise not_served(
                "engine=vllm preemption=swap", "vLLM V1 computes a preempted request again, and does not swap"
            )
        values |= {"block_size": s.block_size, "kv_cache_dtype": s.kv_cache_dtype, "execution": s.execution}
        values["tp_size"] = s.tp_size
        if s.speculation in ("none", "draft"):
            values["async_scheduling"] = s.async_scheduling
        if s.speculation == "draft":
            values["draft_dir"] = at.weights(s.draft_model).path
    if s.engine in ("openvino", "vllm"):
        values |= {"speculation": s.speculation, "num_assistant_tokens": s.num_assistant_tokens}
        if s.speculation == "none":
            values["enable_kv_cache_reuse"] = s.enable_kv_cache_reuse
    if s.engine in ("openvino", "transformers") and s.pace != "none":
        values |= {"pace": s.pace, "pace_slower": s.pace_slower}
        if s.pace in ("h100", "h200"):
            values["pace_shape"] = s.pace_shape
        if s.pace == "measured":
            values["pace_table"] = s.pace_table
    v1 = Replacement("tensorrt_llm/config.pbtxt", f'"{IN_FLIGHT}"', f'"{batching}"')
    return Served(
        repository=["llm"],
        parameters=values,
        optional=[key for key, value in values.items() if value is None],
        files={"tensorrt_llm/1/scheduler.py": s.scheduler} if s.scheduler else {},
        replacements=[] if batching == IN_FLIGHT else [v1],
        probes=PROBES,
        tokenizer=weights,
        env=ENV,
        copies=0 if s.engine == "openvino" else 1,
        packages="vllm" if s.engine == "vllm" else None,
    )


def _tensorrt_llm(s: LlmSettings, at: Place, batching: str) -> Served:
    """The release's own models around an engine, which was built for one GPU."""
    at.require("gpu", "engine=tensorrt-llm")
    weights = at.weights(s.model)
    engine = at.engine(
        "tensorrt-llm",
        s.model,
        quantization=s.quantization,
        max_batch_size=s.max_batch_size,
        max_input_len=s.max_input_len,
        max_output_len=s.max_output_len,
        # Static batching computes all prompts of a batch in one step, which the builder makes room for.
        max_num_tokens=0 if batching == "V1" else s.max_num_tokens,
        chunked_context=s.enable_chunked_context,
        kv_cache_reuse=s.enable_kv_cache_reuse,
    )
    return Served(
        parameters={"engine_dir": engine.path, "tokenizer_dir": weights.path},
        probes=PROBES,
        tokenizer=weights,
        env=ENV,
        tensorrt_llm={
            "gpt_model_type": batching,
            "batch_scheduler_policy": s.batch_scheduler_policy,
            "max_batch_size": s.max_batch_size,
            "max_num_sequences": s.max_num_sequences,
            "max_tokens_in_paged_kv_cache": s.max_tokens_in_paged_kv_cache,
            "kv_cache_free_gpu_mem_fraction": s.kv_cache_free_gpu_mem_fraction,
            "enable_chunked_context": s.enable_chunked_context,
            "enable_kv_cache_reuse": s.enable_kv_cache_reuse,
            "decoupled_mode": s.decoupled_mode,
        },
    )
