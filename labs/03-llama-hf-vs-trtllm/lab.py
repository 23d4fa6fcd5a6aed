"""Lab 03: the same prompts through Hugging Face's generate, unbatched and batched, and through a compiled engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from labctl.lab import Bench, Guess, Lab, LabRun, Place, Probe, Served, Stack, Verdict, not_served, setting, setting_of
from labs.shared.llm import BENCH, IN_FLIGHT, MODELS, LlmSettings, llm


class Settings(LlmSettings):
    gpt_model_type: Literal["V1", "inflight_fused_batching", "inflight_batching"] = setting(
        IN_FLIGHT, "static batching, or requests that join and leave at every step"
    )
    # The engine shares its GPU with Hugging Face's two models here.
    max_tokens_in_paged_kv_cache: int | None = setting_of(LlmSettings, "max_tokens_in_paged_kv_cache", None, gpu=8192)
    kv_cache_free_gpu_mem_fraction: float = setting_of(LlmSettings, "kv_cache_free_gpu_mem_fraction", 0.9, gpu=0.45)
    kv_cache_memory_mib: int | None = setting_of(LlmSettings, "kv_cache_memory_mib", None, gpu=16384)
    hf_batch_size: int = setting(16, "the most requests in one batch of llama-python-batched", ge=1, le=64)
    prompts: int = setting(
        4, "prompts sent at once (4 as published; beyond these they are generated)", ge=1, le=200, of_run=True
    )
    output_tokens: int = setting(40, "tokens of each answer", ge=1, le=512, of_run=True)


def serve(s: Settings, at: Place) -> Served:
    served = llm(s, at, s.gpt_model_type)
    assert served.tokenizer
    values: dict[str, Any] = {"model_path": served.tokenizer.path, "hf_batch_size": s.hf_batch_size}
    if served.tensorrt_llm is not None:  # whose own templates have none of these
        values |= {"run_dir": at.run_dir, "threads": s.threads, "instance_kind": at.instance_kind}
    hello = Probe({"text_input": "Hello", "max_tokens": 1}, "generate")
    return replace(
        served,
        repository=[*served.repository, "llama-python"],
        parameters={**served.parameters, **values},
        probes={**served.probes, "llama-python": hello, "llama-python-batched": hello},
        copies=served.copies + 2,  # llama-python and llama-python-batched
    )


def serve_vllm(s: Settings, at: Place) -> Served:
    if s.engine != "vllm":
        raise not_served(f"engine={s.engine}", "vllm_model is vLLM's")
    weights = at.weights(s.model)
    reuse = {"enable_prefix_caching": s.enable_kv_cache_reuse} if s.speculation == "none" else {}
    # On a GPU vLLM's own steps, and a share of the card; with the usual 0.92 a screen is in its way.
    cpu = {"max_num_batched_tokens": 256, "kv_cache_memory_bytes": 256 * 2**20}
    memory = cpu if at.profile == "cpu" else {"gpu_memory_utilization": 0.85}
    return Served(
        repository=["vllm"],
        parameters={"model_path": weights.path, "threads": s.threads, "run_dir": at.run_dir},
        vllm={
            "model": weights.path,
            **memory,
            "max_num_seqs": s.max_num_sequences,
            "block_size": s.block_size,
            "kv_cache_dtype": s.kv_cache_dtype,
            "scheduling_policy": s.scheduling,
            **reuse,
        },
        probes={"vllm_model": Probe({"text_input": "Hello", "stream": True, "max_tokens": 1}, "generate_stream")},
        tokenizer=weights,
        copies=1 if at.profile == "gpu" else 0,
        packages="vllm",
    )


EXACT: dict[str, Any] = {"engine_precision": "fp32", "exact": True}
LLAMA = Stack(
    name="llama",
    title="llama-python (Hugging Face) beside the four models around a compiled engine",
    models=[*MODELS, "llama-python", "llama-python-batched"],
    serve=serve,
    bench=BENCH,
    also=[EXACT],
)
VLLM_BACKEND = Stack(
    name="vllm-backend",
    title="vllm_model, which has the tensors of NVIDIA's vllm_backend, for its clients",
    models=["vllm_model"],
    serve=serve_vllm,
    settings={"engine": "vllm"},
    bench=Bench("vllm_model"),
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    with lab.serving(LLAMA) as server:
        server.client("client.py", "default")
    if lab.profile == "cpu":
        with lab.serving(LLAMA, **EXACT) as server:
            server.client("client.py", "exact")
    with lab.serving(LLAMA, decoupled_mode=True) as server:
        server.client("client.py", "streaming")
    lab.report("report.py")
    yield Verdict(
        name="engine-over-hf",
        value="default.engine_over_hf",
        at_least=2.0,
        timed=True,
        text="the engine answered all prompts {value:.1f}x as fast as Hugging Face (published on a GPU: 4.18x); "
        "batching alone: {m[default.batching_alone]:.1f}x",
    )
    if lab.profile == "cpu":
        yield Verdict(
            name="exact-agrees",
            value="exact.agreeing",
            at_least=1.0,
            text="fp32 throughout: {value:.0%} of the engine's answers equal Hugging Face's to the last token",
        )


LAB = Lab(
    short="llama",
    title="Llama, Hugging Face against a compiled engine",
    summary="The same prompts through Hugging Face's generate, unbatched and batched, and through a compiled engine.",
    settings=Settings,
    serves=[LLAMA, VLLM_BACKEND],
    run=run,
    guess=Guess(
        question="Hugging Face answers one prompt after the other. How many times as fast is it when it gets the "
        "waiting prompts as one batch?",
        value="default.batching_alone",
        unit="times",
    ),
)
