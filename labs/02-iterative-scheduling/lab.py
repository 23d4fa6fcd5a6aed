"""Lab 02: one model finishes a batch before the next; the other lets a new prompt join at every token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from labctl.lab import (
    BareEngine,
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
    model: ModelSource = setting(
        "shipped:tiny-gpt2", "GPT-2 weights; random:gpt2 for measurements, hub:openai-community/gpt2 for the real one"
    )
    kv_cache: bool = setting(
        True, "keep keys and values between steps; false recomputes the whole text each step, as the original does"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "numbers to compute in (fp16 on a CPU is weights alone); auto is fp32, for a large model bf16 or fp16, fp16 on "
        "a GPU",
    )
    max_batch_size: int = setting(
        8, "here how many sequences generate together, one KV cache slot each; more of them wait", ge=1, le=64
    )
    max_sequence_idle_microseconds: int = setting(
        900_000_000,
        "a sequence that sends nothing for this long is dropped (allow more than the slowest step, or a pause)",
        ge=100_000,
        le=3_600_000_000,
    )
    max_candidate_sequences: int = setting(
        16384, "sequences of iterative-gpt2 that Triton has in its queue at once", ge=1, le=65536
    )
    gather_microseconds: int = setting(
        3000,
        "how long an idle iterative-gpt2 waits for requests that arrive together; 0 does not wait",
        ge=0,
        le=1_000_000,
    )
    threads: int = setting(
        0,
        "CPU threads of each model instance; 0: one for weights of less than 16 MB, whose threads would only wait for "
        "each other, else two",
        ge=0,
        le=256,
    )
    clients: int = setting(4, "clients of the second part, arriving at random", ge=1, le=64, of_run=True)


def serve(s: Settings, at: Place) -> Served:
    weights = at.weights(s.model)
    hello = Probe({"text_input": "Hello", "max_tokens": 1}, "generate_stream")
    return Served(
        repository=["iterative"],
        parameters={
            "instance_kind": at.instance_kind,
            "model_path": weights.path,
            "run_dir": at.run_dir,
            "kv_cache": s.kv_cache,
            "precision": s.precision,
            "max_batch_size": s.max_batch_size,
            "max_sequence_idle_microseconds": s.max_sequence_idle_microseconds,
            "max_candidate_sequences": s.max_candidate_sequences,
            "gather_microseconds": s.gather_microseconds,
            "threads": s.threads,
        },
        probes={"simple-gpt2": hello, "iterative-gpt2": hello},
        tokenizer=weights,
        # Half a millisecond: a step has a hundred parallel parts, and the idle one of two models rests.
        env={"GOMP_SPINCOUNT": "10000"},
        copies=2,
        kv_sequences=2 * s.max_batch_size if s.kv_cache else 0,
    )


ITERATIVE = Stack(
    name="iterative",
    title="simple-gpt2 and iterative-gpt2 in one server",
    models=["simple-gpt2", "iterative-gpt2"],
    serve=serve,
    bench=Bench("iterative-gpt2", BareEngine("iterative-gpt2", "gpt2")),
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    for phase, kv_cache in (("original", False), ("kv-cache", True)):
        with lab.serving(ITERATIVE, kv_cache=kv_cache) as server:
            server.client("client.py", phase)
    lab.report("report.py")
    yield Verdict(
        name="iterative-overlap",
        # Counted in tokens. A server that waits has exactly 0, whatever the machine does. How soon the newcomer is let
        # in depends on Triton's threads as well: on two busy processors it may miss the first half of a short answer.
        value="iterative.token_overlap",
        at_least=0.1,
        timed=True,  # a client without a processor sends the second request when the first has ended
        text="iterative: the two requests overlapped for {value:.0%} of their tokens "
        "(simple: {m[simple.token_overlap]:.0%}); tokens of the first that the "
        "second request waited for: {m[iterative.tokens_before_newcomer]} (simple: {m[simple.tokens_before_newcomer]})",
    )


LAB = Lab(
    short="iterative",
    title="Iterative scheduling with GPT-2",
    summary="One model finishes a batch before the next; the other lets a new prompt join at every token.",
    settings=Settings,
    serves=[ITERATIVE],
    run=run,
    guess=Guess(
        question="Two prompts; the second comes while the first is answered, token by token. For how many tokens "
        "of the first answer does the second prompt wait, under iterative scheduling?",
        value="iterative.tokens_before_newcomer",
        unit="tokens",
    ),
)
