"""Lab 05: the same engine under the same limits. All that differs is which requests may join the batch, and when."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from labctl.lab import Guess, Lab, LabRun, Stack, Verdict, setting, setting_of
from labs.shared.llm import BENCH, IN_FLIGHT, MODELS, EngineAlone, llm


class Settings(EngineAlone):
    dataset: str | None = setting(
        None, 'a JSON file of {"input", "instruction", "output"} in place of the generated prompts', of_run=True
    )
    requests: int = setting(98, "generated prompts of each workload", ge=2, le=10000, of_run=True)
    max_num_sequences: int = setting_of(EngineAlone, "max_num_sequences", 16, gpu=8)  # 8 as in the published test
    # So that the first batch is whole: 98 prompts take longer than 5 ms to come.
    gather_microseconds: int = setting_of(EngineAlone, "gather_microseconds", 200_000)
    published_scale: float = setting(
        0.25,
        "share of the published prompts' length (1.0 is 799.66 tokens in, minutes on two cores)",
        gpu=1.0,
        ge=0.02,
        le=1.0,
        of_run=True,
    )


STATIC = Stack(
    name="static-batching",
    title="V1: a batch runs until its last member is done",
    models=MODELS,
    serve=partial(llm, batching="V1"),
    bench=BENCH,
)
INFLIGHT = Stack(
    name="inflight-batching",
    title="inflight_fused_batching: requests join and leave at every step",
    models=MODELS,
    serve=partial(llm, batching=IN_FLIGHT),
    bench=BENCH,
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    for phase, stack in (("static", STATIC), ("inflight", INFLIGHT)):
        with lab.serving(stack) as server:
            server.client("client.py", phase)
    # A KV cache so small that the two policies part ways; NVIDIA's engine wants room for one longest sequence.
    room = 4096 if s.engine == "tensorrt-llm" else 832
    policies = {"no-evict": "guaranteed_no_evict", "max-utilization": "max_utilization"}
    other = " (guaranteed_no_evict: {m[policies.no-evict.mean_batch]:.1f})"
    if s.engine == "vllm":  # it has one policy: the other is unmeasured
        del policies["no-evict"]
        other = ""
    for phase, policy in policies.items():
        with lab.serving(INFLIGHT, batch_scheduler_policy=policy, max_tokens_in_paged_kv_cache=room) as server:
            server.client("client.py", phase)
    lab.report("report.py")
    # Steps are counted. Seconds of two servers that ran minutes apart are not judged.
    # NVIDIA's backend counts its iterations, and lab 05 sees most of them.
    yield Verdict(
        name="inflight-over-static",
        value="ratios.chat.engine_steps",
        at_most=0.7,
        timed=True,  # a client without a processor sends its requests one by one, and the first steps are for few
        text="chat workload: in-flight batching needed {value:.0%} of static batching's engine steps, and served "
        "{m[ratios.chat.requests_per_second]:.2f} times its requests/s",
    )
    yield Verdict(
        name="policies-differ",
        value="policies.max-utilization.preemptions",
        at_least=1,
        text="small KV cache: max_utilization ran {m[policies.max-utilization.mean_batch]:.1f} requests at a time"
        f"{other}, with {{value:.0f}} preemptions",
    )
    yield Verdict(
        name="no-evict-keeps-its-word",
        value="policies.no-evict.preemptions",
        at_most=0,
        text="guaranteed_no_evict preempted {value:.0f} requests, and used at most "
        "{m[policies.no-evict.max_kv_blocks_used]:.0f} of {m[policies.no-evict.kv_blocks]:.0f} blocks",
    )


LAB = Lab(
    short="batching",
    title="Static against in-flight batching, and two ways to share the KV cache",
    summary="The same engine under the same limits. All that differs is which requests may join the batch, and when.",
    settings=Settings,
    serves=[STATIC, INFLIGHT],
    run=run,
    guess=Guess(
        question="The chat workload has answers of very different lengths. What share of static batching's "
        "engine steps does in-flight batching need?",
        value="ratios.chat.engine_steps",
        unit="%",
    ),
)
