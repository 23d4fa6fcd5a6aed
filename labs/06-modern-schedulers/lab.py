"""Lab 06: chunked prefill, prefix caching, speculative decoding and scheduling policies, each with its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from labctl.lab import Guess, Lab, LabRun, Place, Probe, Served, Stack, Verdict, setting
from labs.shared.llm import BENCH, MODELS, EngineAlone, llm


class Settings(EngineAlone):
    door_width: int = setting(1, "requests that the door before the ensemble lets through at a time", ge=1, le=16)
    door_max_queue_size: int = setting(
        8, "requests of one priority that may wait at the door; 0 is any number", ge=0, le=1000
    )
    door_timeout_microseconds: int = setting(
        0, "how long a request may wait in the queue; 0 sets no limit", ge=0, le=1_000_000_000
    )
    night_cores: int = setting(1, "night jobs that the rate limiter lets run at a time", ge=1, le=3)


def serve(s: Settings, at: Place) -> Served:
    served = llm(s, at)
    one = {"inputs": [{"name": "milliseconds", "shape": [1], "datatype": "INT32", "data": [1]}]}
    probes = {**served.probes, "night_job": Probe(one)}
    if not s.decoupled_mode:  # the door waits for whole answers, and has none to give where the engine streams
        probes["door"] = Probe({"text_input": "Hello", "max_tokens": 1}, "generate")
    return replace(
        served,
        repository=[*served.repository, "./models"],
        parameters={
            **served.parameters,
            "trtllm_integers": "UINT32" if served.tensorrt_llm is None else "INT32",
            "run_dir": at.run_dir,
            "door_width": s.door_width,
            "door_max_queue_size": s.door_max_queue_size,
            "door_timeout_microseconds": s.door_timeout_microseconds,
        },
        args=[
            "--cache-config=local,size=16777216",  # bytes
            "--rate-limit=execution_count",
            f"--rate-limit-resource=cores:{s.night_cores}",
        ],
        probes=probes,
    )


# The two shipped models belong together: they were trained on the same texts.
TINY = "shipped:tiny-llama"
DRAFT: dict[str, Any] = {"model": TINY, "speculation": "draft", "draft_model": "shipped:tiny-llama-draft"}
MODERN = Stack(
    name="modern",
    title="an engine with every scheduler setting, and a door in front of it",
    models=[*MODELS, "door", "night_job"],
    serve=serve,
    bench=BENCH,
    also=[DRAFT],
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    # 1. Tokens of one step at most. With TensorRT-LLM each budget is an engine of its own.
    budgets = (8192, 256) if s.engine == "tensorrt-llm" else (1024, 512, 256, 128, 64)
    for budget in budgets:
        with lab.serving(MODERN, decoupled_mode=True, enable_chunked_context=True, max_num_tokens=budget) as server:
            server.client("chunked.py", f"budget-{budget}")
    # 2. Prompts with common prefixes: without a prefix cache, with one, and with one that is too small.
    if s.engine != "transformers" and s.speculation == "none":
        for phase, reuse in (("prefix-off", False), ("prefix-on", True)):
            with lab.serving(MODERN, decoupled_mode=True, enable_kv_cache_reuse=reuse) as server:
                server.client("prefix.py", phase)
        if s.engine == "openvino":
            small: dict[str, Any] = {"max_num_sequences": 4, "max_tokens_in_paged_kv_cache": 512}
            with lab.serving(MODERN, decoupled_mode=True, enable_kv_cache_reuse=True, **small) as server:
                server.client("prefix.py", "prefix-small")
    # 3. Speculative decoding.
    if s.engine == "openvino":
        for phase, speculation in (("plain", "none"), ("prompt-lookup", "prompt_lookup")):
            with lab.serving(MODERN, decoupled_mode=True, model=TINY, speculation=speculation) as server:
                server.client("speculation.py", phase)
        with lab.serving(MODERN, decoupled_mode=True, **DRAFT) as server:
            server.client("speculation.py", "draft")
    # 4. The order in which waiting requests join.
    if s.engine in ("openvino", "transformers") and lab.profile == "cpu":
        few: dict[str, Any] = {"model": TINY, "max_num_sequences": 4, "max_tokens_in_paged_kv_cache": 1024}
        for order in ("fcfs", "priority", "shortest_first", "fair"):
            with lab.serving(MODERN, decoupled_mode=True, scheduling=order, **few) as server:
                server.client("tenants.py", order.replace("_", "-"))
    # 5. Triton itself, in front of the ensemble.
    model: dict[str, Any] = {} if s.engine == "tensorrt-llm" else {"model": TINY}
    with lab.serving(MODERN, decoupled_mode=False, **model) as server:
        server.client("tritons_own.py", "triton")
    lab.report("report.py")
    yield from verdicts(lab)


def verdicts(lab: LabRun) -> Iterator[Verdict]:
    yield Verdict(
        name="a-budget-bounds-a-step",
        value="chunked.over_budget",
        at_most=0,
        text="no step computed more tokens than its budget (from {m[chunked.most.budget]} down to "
        "{m[chunked.least.budget]})",
    )
    yield Verdict(
        name="a-budget-shortens-the-gap",
        value="chunked.work_ratio",
        at_least=4,
        text="between two tokens of a running request at most {m[chunked.least.largest_step]} tokens were computed at "
        "a budget of {m[chunked.least.budget]}, instead of {m[chunked.most.largest_step]} at "
        "{m[chunked.most.budget]} ({value:.1f}x less; longest gap {m[chunked.least.longest_gap_ms]:.0f} ms instead of "
        "{m[chunked.most.longest_gap_ms]:.0f}); the new prompt took {m[chunked.least.prompt_steps]} steps instead of "
        "{m[chunked.most.prompt_steps]} (TTFT {m[chunked.least.ttft_ms]:.0f} ms instead of "
        "{m[chunked.most.ttft_ms]:.0f})",
    )
    yield Verdict(
        name="a-prefix-is-computed-once",
        value="prefix.saved",
        at_least=3,
        text="prefix cache: {m[prefix.on.one.computed]:,} prompt tokens computed instead of "
        "{m[prefix.off.one.computed]:,} ({value:.1f}x less work; TTFT {m[prefix.on.one.ttft_ms]:.0f} ms instead of "
        "{m[prefix.off.one.ttft_ms]:.0f})",
    )
    if lab.profile == "cpu":
        yield Verdict(
            name="a-small-cache-forgets",
            value="prefix.lost",
            at_least=0.2,
            text="four instructions in turn: {m[prefix.on.turn.hit_rate]:.0%} of the prompt tokens were found in the "
            "large cache, {m[prefix.small.turn.hit_rate]:.0%} in the small one, and "
            "{m[prefix.small.sorted.hit_rate]:.0%} there when sorted by instruction",
        )
        yield Verdict(
            name="a-draft-saves-steps",
            value="speculation.draft.batch_1.steps_per_token",
            at_most=0.7,
            text="steps for a token: {value:.2f} with a draft model, "
            "{m[speculation.prompt_lookup.batch_1.steps_per_token]:.2f} with prompt lookup (without: 1); tokens/s "
            "relative to plain decoding: {m[speculation.draft.batch_1.times_plain]:.2f} and "
            "{m[speculation.prompt_lookup.batch_1.times_plain]:.2f} with one request, "
            "{m[speculation.draft.batch_8.times_plain]:.2f} and "
            "{m[speculation.prompt_lookup.batch_8.times_plain]:.2f} with eight",
        )
        yield Verdict(
            name="a-draft-is-often-right",
            value="speculation.draft.batch_1.accepted_share",
            at_least=0.3,
            text="{value:.0%} of the draft tokens were accepted: the model would have chosen them too",
        )
        yield Verdict(
            name="fair-is-fair",
            value="tenants.fair.apart",
            at_most=1,
            text="fair: the light tenant was never more than {value:.1f} requests from its half while both waited "
            "(TTFT {m[tenants.fair.light_ttft_ms]:.0f} ms; the flood: {m[tenants.fair.flood_ttft_ms]:.0f} ms)",
        )
        yield Verdict(
            name="first-come-is-not",
            value="tenants.fcfs.apart",
            at_least=2,
            text="fcfs: the light tenant fell {value:.1f} requests behind its half "
            "(TTFT {m[tenants.fcfs.light_ttft_ms]:.0f} ms; the flood: {m[tenants.fcfs.flood_ttft_ms]:.0f} ms)",
        )
    yield Verdict(
        name="an-answer-is-kept",
        value="triton.cache.hits",
        at_least=10,
        text="response cache: {value:.0f} of 11 equal requests were answered from memory, in "
        "{m[triton.cache.again_ms]:.1f} ms instead of {m[triton.cache.first_ms]:.1f}",
    )
    yield Verdict(
        name="the-urgent-overtake",
        value="triton.priorities.overtaken",
        at_least=0.8,
        text="priority levels: {m[triton.priorities.urgent]:.0f} urgent requests were sent behind "
        "{m[triton.priorities.usual]:.0f} others, and executed before {value:.0%} of them",
    )
    yield Verdict(
        name="the-queue-rejects",
        value="triton.rejected.rejected",
        at_least=4,
        text="queue policy: {value:.0f} of {m[triton.rejected.came]} requests were rejected at once, because at most "
        "{m[triton.rejected.room]} may wait",
    )
    yield Verdict(
        name="the-limiter-limits",
        value="triton.limited.at_once",
        at_most=1,
        text="rate limiter: {value:.0f} of three instances of the night job ran at a time; a short answer took "
        "{m[triton.limited.beside_ms]:.0f} ms beside them, {m[triton.limited.alone_ms]:.0f} ms alone",
    )


LAB = Lab(
    short="schedulers",
    title="Modern schedulers",
    summary="Chunked prefill, prefix caching, speculative decoding and scheduling policies, each with the number that "
    "shows it.",
    settings=Settings,
    serves=[MODERN],
    run=run,
    guess=Guess(
        question="Many requests begin with one instruction. How many times fewer prompt tokens are computed when "
        "its blocks stay in the cache?",
        value="prefix.saved",
        unit="times",
    ),
    share_server=True,
)
