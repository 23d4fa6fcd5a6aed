"""Lab 08: the same requests under vLLM's scheduler and ours, step by step; where they part, and which rule decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from labctl.lab import Guess, Lab, LabRun, ModelSource, Stack, Verdict, setting, setting_of
from labs.shared.llm import BENCH, MODELS, Engine, LlmSettings, Policy, llm

Tokens = Annotated[int, Field(ge=1, le=2000)]


class Settings(LlmSettings):
    model: ModelSource = setting_of(LlmSettings, "model", "shipped:tiny-llama")
    engine: Engine = setting_of(LlmSettings, "engine", "vllm")
    batch_scheduler_policy: Policy = setting_of(LlmSettings, "batch_scheduler_policy", "max_utilization")
    max_num_sequences: int = setting_of(LlmSettings, "max_num_sequences", 4)
    max_tokens_in_paged_kv_cache: int | None = setting_of(LlmSettings, "max_tokens_in_paged_kv_cache", 320)
    max_num_tokens: int | None = setting_of(LlmSettings, "max_num_tokens", 64)
    enable_chunked_context: bool = setting_of(LlmSettings, "enable_chunked_context", True)
    # Step by step: a step is decided when the one before it is over.
    async_scheduling: bool = setting_of(LlmSettings, "async_scheduling", False)
    decoupled_mode: bool = setting_of(LlmSettings, "decoupled_mode", True)
    prompts: list[Tokens] = setting(
        [40, 30, 90, 50, 60, 35, 120, 45], "your trace: tokens of each request's prompt", of_run=True
    )
    answers: list[Tokens] = setting(
        [60, 60, 30, 60, 40, 60, 20, 40], "your trace: tokens of each request's answer", of_run=True
    )


TWO_SCHEDULERS = Stack(
    name="two-schedulers",
    title="one small model behind vLLM's scheduler, or behind ours",
    models=MODELS,
    serve=llm,
    bench=BENCH,
    also=[{"engine": "openvino"}],
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    plain: dict[str, Any] = {"enable_kv_cache_reuse": False, "scheduling": "fcfs"}
    reuse: dict[str, Any] = {"enable_kv_cache_reuse": True, "scheduling": "priority"}
    phases = [("vllm", {**plain, "engine": "vllm"}), ("vllm-reuse", {**reuse, "engine": "vllm"})]
    if lab.profile == "cpu":
        phases += [("ours", {**plain, "engine": "openvino"}), ("ours-reuse", {**reuse, "engine": "openvino"})]
    else:  # shares no prefixes
        phases += [("ours", {"engine": "transformers", "scheduling": "fcfs"})]
    for phase, settings in phases:
        with lab.serving(TWO_SCHEDULERS, **settings) as server:
            server.client("client.py", phase)
    lab.report("report.py")
    yield Verdict(
        name="alike-until-memory-is-short",
        value="trace.alike",
        at_least=1,
        text="the first {value:.0f} steps compute the same under both schedulers; they part where a request waits for "
        "memory: ours keeps {m[trace.reserved]:.0f} blocks free for running requests, vLLM none",
    )
    yield Verdict(
        name="preemption-computes-again",
        value="trace.vllm.recomputed",
        at_least=1,
        text="vLLM preempted {m[trace.vllm.preempted]:.0f} times and computed {value:.0f} tokens again, "
        "{m[trace.vllm.tax]:.0%} of all; ours {m[trace.ours.preempted]:.0f} times and "
        "{m[trace.ours.recomputed]:.0f} tokens",
    )
    yield Verdict(
        name="whole-blocks",
        value="prefix.vllm.beyond_whole_blocks",
        at_most=0,
        text="vLLM found {m[prefix.vllm.found]:.0f} tokens of known beginnings, all of them in whole blocks",
    )
    if lab.profile == "cpu":
        yield Verdict(
            name="half-full-blocks",
            value="prefix.ours.beyond_whole_blocks",
            at_least=1,
            text="our engine found {m[prefix.ours.found]:.0f}, {value:.0f} of them in blocks that are not full",
        )
    yield Verdict(
        name="a-budget-bounds-a-step",
        value="chunked.over_budget",
        at_most=0,
        text="a prompt of {m[chunked.prompt]:.0f} tokens beside a decoding request took {m[chunked.vllm]:.0f} steps of "
        "vLLM and {m[chunked.ours]:.0f} of ours, none of more than {m[chunked.budget]:.0f} tokens",
    )
    yield Verdict(
        name="the-urgent-are-first",
        value="urgent.priority.before",
        at_most=0,
        text="under vLLM's priority {value:.0f} of {m[urgent.usual]:.0f} usual requests began before the last urgent "
        "one, under its fcfs {m[urgent.fcfs.before]:.0f}",
    )
    yield Verdict(
        name="the-urgent-are-not-victims",
        value="urgent.priority.victims",
        at_most=0,
        text="under priority {value:.0f} urgent requests were preempted, under fcfs {m[urgent.fcfs.victims]:.0f}",
    )


LAB = Lab(
    short="vllm",
    title="Your trace on vLLM's scheduler and on ours",
    summary="The same requests under both schedulers, step by step; where they part, and which rule of vLLM decides.",
    settings=Settings,
    serves=[TWO_SCHEDULERS],
    run=run,
    guess=Guess(
        question="Memory is short, and vLLM preempts. What share of the tokens that it computes was computed before?",
        value="trace.vllm.tax",
        unit="%",
    ),
    share_server=True,
)
