"""Lab 09: two servers share the work by kind or by request; when each way wins, where a prefix is cached, and when to
load instead of compute.
"""

from __future__ import annotations

from collections.abc import Iterator

from labctl.lab import (
    Bench,
    Guess,
    Lab,
    LabRun,
    LabSettings,
    ModelSource,
    Place,
    Probe,
    Served,
    Stack,
    Verdict,
    setting,
)


class Settings(LabSettings):
    model: ModelSource = setting("shipped:tiny-gpt2", "GPT-2 weights")
    slots: int = setting(8, "requests that run together on each server", ge=1, le=64)
    step_ms: float = setting(
        10, "how long a step lasts on any machine; 0: as long as this machine needs", ge=0, le=10000
    )
    token_ms: float = setting(0.5, "the time that each token of a prompt adds to a step", ge=0, le=1000)
    kept_blocks: int = setting(
        64, "blocks of 16 tokens that each server keeps of earlier prompts and answers", ge=0, le=65536
    )
    load_ms: float = setting(
        0, "the time before a load from these blocks or from the other server begins", ge=0, le=10000
    )
    load_mib_s: float = setting(0, "the speed of that load in MiB/s; 0: this machine's", ge=0, le=1_000_000)
    bypass: int = setting(
        48, "prompts of at most this many tokens are computed where they are decoded", ge=0, le=1024, of_run=True
    )


def serve(s: Settings, at: Place) -> Served:
    weights = at.weights(s.model)
    return Served(
        repository=["./models"],
        parameters={
            "model_path": weights.path,
            "slots": s.slots,
            "step_ms": s.step_ms,
            "token_ms": s.token_ms,
            "kept_blocks": s.kept_blocks,
            "load_ms": s.load_ms,
            "load_mib_s": s.load_mib_s,
            "run_dir": at.run_dir,
        },
        probes={"apart-gpt2": Probe({"text_input": "Hello", "max_tokens": 1}, "generate_stream")},
        tokenizer=weights,
    )


TWO_SERVERS = Stack(
    name="two-servers",
    title="GPT-2 on servers that hand requests over",
    models=["apart-gpt2"],
    serve=serve,
    bench=Bench("apart-gpt2"),
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    lab.require("cpu")  # on a GPU each server would need one
    for phase, servers in (("apart", 2), ("load", 2), ("routing", 4)):
        with lab.serving(TWO_SERVERS, replicas=servers, balance="client") as server:
            server.client(f"{phase}.py", phase)
    with lab.serving(TWO_SERVERS, replicas=2, balance="client", load_ms=40, load_mib_s=20) as server:
        server.client("offload.py", "offload")
    lab.report("report.py")
    yield Verdict(
        name="the-same-answers",
        value="apart.changed",
        at_most=0,
        text="prefill and decode on two servers: {value:.0f} of {m[apart.requests]:.0f} answers differ from those of "
        "servers that do both",
    )
    yield Verdict(
        name="readers-wait-together",
        value="apart.together.between",
        at_least=1,
        timed=True,  # readers and prompts must meet
        text="together: between two tokens of a reader up to {value:.0f} tokens of other prompts were computed "
        "(ITL p99 {m[apart.together.gap_p99_ms]:.0f} ms)",
    )
    yield Verdict(
        name="readers-do-not-wait-apart",
        value="apart.apart.between",
        at_most=0,
        text="apart: {value:.0f} (ITL p99 {m[apart.apart.gap_p99_ms]:.0f} ms)",
    )
    yield Verdict(
        name="what-is-moved",
        value="apart.off",
        at_most=0,
        text="the servers moved {m[apart.apart.fetched]:,.0f} bytes, which is 2 x layers x width x 4 for each token of "
        "the prompts",
    )
    yield Verdict(
        name="short-prompts-stay",
        value="apart.bypass.off",
        at_most=0,
        text="with the bypass {m[apart.bypass.short]:.0f} short requests moved nothing",
    )
    yield Verdict(
        name="apart-wins-below-the-crossing",
        value="load.gain",
        at_least=0.1,
        timed=True,
        text="below the crossing up to {value:.0%} more requests were within their limits apart than together",
    )
    yield Verdict(
        name="apart-loses-above-it",
        value="load.apart_by",
        at_most=1,
        timed=True,
        text="apart loses from {m[load.measured]:.0f} requests/s on; {m[load.foreseen]:.0f} were foreseen",
    )
    yield Verdict(
        name="cached-where-it-is-sent",
        value="routing.agents.times",
        at_least=2,
        text="agents: by least work the servers found {m[routing.agents.least_work.cached]:,.0f} tokens cached, "
        "{value:.1f} times as many as by round robin",
    )
    yield Verdict(
        name="the-router-knows",
        value="routing.agents.least_work.off",
        at_most=512,
        timed=True,  # of requests that do not come together a later one finds less, where an earlier one has ended
        text="what the router expected differs from what the servers found by {value:.0f} tokens",
    )
    yield Verdict(
        name="affinity-makes-a-hot-spot",
        value="routing.fan_out.affinity.share",
        at_least=0.99,
        text="fan-out: by affinity one server got {value:.0%} of the requests, by least work "
        "{m[routing.fan_out.least_work.share]:.0%}",
    )
    yield Verdict(
        name="loading-pays-from-here",
        value="offload.ratio",
        at_least=0.7,
        at_most=1.4,
        timed=True,
        text="loading a prompt's keys and values pays from {m[offload.measured]:.0f} tokens on; "
        "{m[offload.foreseen]:.0f} were foreseen",
    )


LAB = Lab(
    short="disaggregation",
    title="Prefill apart from decode",
    summary="Two servers share the work by kind or by request; when each way wins, where a prefix is cached, and when "
    "to load instead of compute.",
    settings=Settings,
    serves=[TWO_SERVERS],
    run=run,
    guess=Guess(
        question="Four readers get their answers while three prompts of 400 tokens arrive, and all servers do "
        "both. How many tokens of other prompts are computed between two tokens of a reader, at most?",
        value="apart.together.between",
        unit="tokens",
    ),
    share_server=True,
)
