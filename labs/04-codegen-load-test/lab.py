"""Lab 04: a stepped load on a code model, with and without dynamic batching; Triton's own counters show the batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from labctl.lab import (
    Bench,
    Guess,
    Lab,
    LabRun,
    LabSettings,
    ModelSource,
    Place,
    Probe,
    Replacement,
    Served,
    Stack,
    Verdict,
    setting,
)

IN_PROCESS = {"engine": ["openvino", "transformers"]}
TENSORRT_LLM = {"engine": "tensorrt-llm"}


class Settings(LabSettings):
    model: ModelSource = setting(
        "shipped:tiny-codegen",
        "CodeGen or GPT-J weights; random:codegen-350m for measurements, hub:<id>@<revision> for real ones",
    )
    engine: Literal["openvino", "transformers", "tensorrt-llm"] = setting(
        "openvino", "what computes; transformers runs anywhere, tensorrt-llm on the gpu profile", gpu="transformers"
    )
    engine_precision: Literal["fp32", "fp16", "int8"] = setting(
        "fp32", "how the engine stores its weights", when={"engine": "openvino"}
    )
    exact: bool = setting(
        True,
        "compute in fp32 throughout, so that an answer does not depend on the other requests in its batch",
        when=IN_PROCESS,
    )
    dynamic_batching: bool = setting(
        True, "let requests that wait together share a batch; false executes them one by one"
    )
    max_batch_size: int = setting(64, "here the rows of one batch", ge=1, le=256)
    preferred_batch_sizes: list[Annotated[int, Field(ge=1, le=256)]] | None = setting(
        None, "batch sizes at which Triton does not wait for more; empty takes all that wait"
    )
    max_queue_delay_microseconds: int = setting(
        2000, "how long a request may wait for others to share its batch", ge=0, le=10_000_000
    )
    kv_cache_memory_mib: int = setting(
        4096,
        "memory for keys and values; a batch that needs more is decoded in parts",
        ge=1,
        le=1_000_000,
        when=IN_PROCESS,
    )
    max_input_len: int = setting(
        512, "longest prompt that the engine is built for", ge=1, le=1_000_000, when=TENSORRT_LLM
    )
    max_output_len: int = setting(
        512, "longest answer that the engine is built for", ge=1, le=1_000_000, when=TENSORRT_LLM
    )
    max_num_tokens: int = setting(
        8192, "tokens that the engine may compute in one step", ge=1, le=1_000_000, when=TENSORRT_LLM
    )
    kv_cache_free_gpu_mem_fraction: float = setting(
        0.9, "share that the KV cache may take of the GPU's free memory", ge=0.01, le=1.0, when=TENSORRT_LLM
    )
    quantization: Literal["none", "fp8"] = setting(
        "none", "fp8 needs compute capability 8.9 or newer (Ada, Hopper)", when=TENSORRT_LLM
    )
    threads: int = setting(
        1,
        "CPU threads of the generator; one is fastest for the tiny model, and leaves the rest to its clients",
        ge=1,
        le=256,
        when=IN_PROCESS,
    )
    lengths: list[Annotated[int, Field(ge=1, le=1024)]] = setting([8, 32], "output lengths, one load each", of_run=True)
    users: int = setting(80, "users of the last step", ge=1, le=1000, of_run=True)
    users_per_step: int = setting(10, "users added with each step", ge=1, le=1000, of_run=True)
    step_seconds: float = setting(3, "how long each step lasts", ge=0.5, le=3600, of_run=True)
    warmup_seconds: float = setting(
        1, "seconds at the start of each step that the figures leave out", ge=0, le=600, of_run=True
    )
    protocol: Literal["http", "grpc", "both"] = setting(
        "both", "what the users speak; both means half of each", of_run=True
    )


GENERATOR = "codegen-350M-mono-gptj"
MODELS = ["preprocessing", GENERATOR, "postprocessing", "ensemble", "nothing"]


def serve(s: Settings, at: Place) -> Served:
    weights = at.weights(s.model)
    sizes = ",".join(map(str, s.preferred_batch_sizes or []))
    values: dict[str, Any] = {
        "tokenizer_dir": weights.path,
        "run_dir": at.run_dir,
        "max_batch_size": s.max_batch_size,
        "preferred_batch_sizes": f"[{sizes}]",
    }
    batching = "dynamic_batching {"
    off = Replacement(f"{GENERATOR}/config.pbtxt", batching, f"# switched off: {batching}")
    probe = Probe({"INPUT_0": "def", "INPUT_1": 1, "INPUT_2": "", "INPUT_3": ""}, "generate")
    served = Served(
        repository=["codegen"],
        replacements=[] if s.dynamic_batching else [off],
        probes={"ensemble": probe},
        tokenizer=weights,
        env={"OMP_WAIT_POLICY": "PASSIVE"},
    )
    if s.engine == "tensorrt-llm":
        return tensorrt_llm(s, at, served, values)
    if s.engine == "openvino":
        at.require("cpu", "engine=openvino")
        generator = at.engine("openvino", s.model, precision=s.engine_precision)
    else:  # PyTorch runs the weights as they are
        generator = weights
        served = replace(served, copies=1, kv_sequences=s.max_batch_size)
    values |= {
        "instance_kind": at.instance_kind,
        "model_dir": generator.path,
        "max_queue_delay_microseconds": s.max_queue_delay_microseconds,
        "kv_cache_memory_mib": s.kv_cache_memory_mib,
        "exact": s.exact,
        "threads": s.threads,
    }
    return replace(served, parameters=values)


def tensorrt_llm(s: Settings, at: Place, served: Served, values: dict[str, Any]) -> Served:
    """The generator's place is taken by the release's own model around an engine, with ours before it."""
    at.require("gpu", "engine=tensorrt-llm")
    engine = at.engine(
        "tensorrt-llm",
        s.model,
        model="codegen",
        quantization=s.quantization,
        max_batch_size=s.max_batch_size,
        max_input_len=s.max_input_len,
        max_output_len=s.max_output_len,
        max_num_tokens=s.max_num_tokens,
    )
    values |= {
        "engine_dir": engine.path,
        "model_dir": values["tokenizer_dir"],
        "queue_delay_microseconds": s.max_queue_delay_microseconds,
    }
    return replace(
        served,
        repository=[*served.repository, "codegen.tensorrt-llm"],
        models=[*MODELS, "tensorrt_llm"],
        parameters=values,
        tensorrt_llm={
            "gpt_model_type": "inflight_fused_batching",
            "batch_scheduler_policy": "guaranteed_no_evict",
            "max_batch_size": s.max_batch_size,
            "max_num_sequences": s.max_batch_size,
            "kv_cache_free_gpu_mem_fraction": s.kv_cache_free_gpu_mem_fraction,
            "decoupled_mode": False,
        },
    )


CODEGEN = Stack(
    name="codegen",
    title="preprocessing, codegen-350M-mono-gptj, postprocessing, and their ensemble",
    models=MODELS,
    serve=serve,
    bench=Bench("ensemble"),
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    for phase, batching in (("batching", True), ("one-by-one", False)):
        with lab.serving(CODEGEN, dynamic_batching=batching) as server:
            server.client("client.py", phase)
    lab.report("report.py")
    yield Verdict(
        name="batching-pays",
        value="comparison.worst",
        at_most=0.5,
        timed=True,
        text="{m[comparison.users]} users, {m[comparison.worst_tokens]} tokens (the smallest gain): "
        "{m[comparison.worst_rps_with]:.0f} requests/s in batches of {m[comparison.worst_mean_batch]:.1f}; without "
        "dynamic batching {m[comparison.worst_rps_without]:.0f}, which is {value:.0%} of that",
    )
    yield Verdict(
        name="batches-formed",
        value="comparison.mean_batch",
        at_least=4.0,
        timed=True,  # users without a processor ask one by one
        text="at {m[comparison.users]} users the mean batch (nv_inference_count / nv_inference_exec_count) was at "
        "least {value:.1f} at every length",
    )
    yield Verdict(
        name="load-generator-is-not-the-bottleneck",
        value="load_generator.over_needed",
        at_least=1.5,
        timed=True,
        text="the load generator reached {m[load_generator.ceiling]:.0f} requests/s on a model that does nothing, "
        "{value:.1f} times what the lab needed",
    )


LAB = Lab(
    short="codegen",
    title="A load test of CodeGen with dynamic batching",
    summary="A stepped load on a code model, with and without dynamic batching; Triton's own counters show the batches "
    "that formed.",
    settings=Settings,
    serves=[CODEGEN],
    run=run,
    guess=Guess(
        question="When the most users ask at a time: how many requests are in a batch on average, with dynamic "
        "batching?",
        value="comparison.mean_batch",
        unit="requests",
    ),
)
