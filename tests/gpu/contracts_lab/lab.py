"""The models of a TensorRT-LLM release as far as a client sees them, without TensorRT-LLM: for tests."""

from __future__ import annotations

from labctl.lab import Lab, LabSettings, Place, Probe, Served, Stack, setting


class Settings(LabSettings):
    paused: int = setting(0, "requests that the engine says it has paused in each iteration", ge=0, le=100)
    iteration_ms: int = setting(0, "how long an iteration takes", ge=0, le=1000)


def upstream(s: Settings, at: Place) -> Served:
    return Served(
        repository=["contracts", "contracts-engine"], parameters={"paused": s.paused, "iteration_ms": s.iteration_ms}
    )


def in_front(s: Settings, at: Place) -> Served:
    weights = at.weights("shipped:tiny-codegen")
    return Served(
        repository=["contracts-engine", "codegen", "codegen.tensorrt-llm"],
        parameters={
            "paused": s.paused,
            "iteration_ms": s.iteration_ms,
            "model_dir": weights.path,
            "tokenizer_dir": weights.path,
            "run_dir": at.run_dir,
            "max_batch_size": 8,
            "preferred_batch_sizes": "[]",
            "queue_delay_microseconds": 0,
        },
        probes={"ensemble": Probe({"INPUT_0": "def", "INPUT_1": 1, "INPUT_2": "", "INPUT_3": ""}, "generate")},
        tokenizer=weights,
    )


MODELS = ["preprocessing", "tensorrt_llm", "postprocessing", "ensemble"]
UPSTREAM = Stack(
    name="upstream",
    title="preprocessing, tensorrt_llm, postprocessing and their ensemble",
    models=MODELS,
    serve=upstream,
)
IN_FRONT = Stack(  # lab 04's models of engine=tensorrt-llm
    name="in-front",
    title="codegen-350M-mono-gptj in front of tensorrt_llm",
    models=["codegen-350M-mono-gptj", *MODELS, "nothing"],
    serve=in_front,
)
LAB = Lab(
    short="contracts",
    title="The models of a TensorRT-LLM release as far as a client sees them, without TensorRT-LLM",
    summary="For tests. Names, shapes, datatypes, refusals and metrics are upstream's; each file names where upstream "
    "has them.",
    settings=Settings,
    serves=[UPSTREAM, IN_FRONT],
)
