"""Lab 01: every request of a sequence reaches the same model instance; under Direct in a slot of its own, under Oldest
in any row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from labctl.lab import Guess, Lab, LabRun, LabSettings, ModelSource, Place, Probe, Served, Stack, Verdict, setting


class Settings(LabSettings):
    model: ModelSource = setting(
        "shipped:tiny-gpt2", "GPT-2 weights; random:gpt2 for measurements, hub:openai-community/gpt2 for the real one"
    )
    strategy: Literal["direct", "oldest"] = setting(
        "direct", "a slot for each sequence, or batches of the sequences that have waited longest"
    )
    generator: Literal["onnx", "torchscript"] = setting("onnx", "which of the two generators the ensemble uses")
    sampling: Literal["multinomial", "greedy"] = setting(
        "multinomial", "draw the next token by its probability, or always take the likeliest"
    )
    max_batch_size: int = setting(
        4, "here the slots of each instance (and the rows of every model's batch)", ge=1, le=64
    )
    instances: int = setting(1, "instances of the tokenizer that sequences are spread over", ge=1, le=16)
    max_sequence_idle_microseconds: int = setting(
        5_000_000, "a sequence that sends nothing for this long loses its slot", ge=1000, le=3_600_000_000
    )
    max_candidate_sequences: int = setting(
        16, "oldest only; how many sequences of each instance take turns; more of them wait", ge=1, le=65536
    )
    max_queue_delay_microseconds: int = setting(
        0, "how long a request may wait for others to share its batch", ge=0, le=1_000_000
    )
    minimum_slot_utilization: float = setting(
        0.0, "direct only; the share of slots that ends that wait early (0 never waits)", ge=0.0, le=1.0
    )
    correlation_id: Literal["uint64", "string"] = setting(
        "uint64", "the type of the ids that identify sequences; clients must send this type"
    )
    log_verbose: bool = setting(
        False, "write Triton's verbose log to run/triton.log, from which the slots are read (slow, never timed)"
    )
    backends: Literal["python", "native"] = setting(
        "python",
        "what runs the generators, Python models or Triton's own onnxruntime and pytorch (in NVIDIA's image only)",
        gpu="native",
    )
    threads: int = setting(2, "CPU threads of each generator", ge=1, le=256, when={"backends": "python"})
    clients: int = setting(4, "clients at once, one sequence each", ge=1, le=64, of_run=True)
    steps: int = setting(10, "requests of each sequence", ge=1, le=500, of_run=True)
    protocol: Literal["http", "grpc"] = setting("http", "how the clients speak to Triton", of_run=True)


# Triton 2.51 cannot pass a string control to a python model, which reads the id from the request instead.
CORR_ID = 'control_input { name: "CORR_ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }'


def serve(s: Settings, at: Place) -> Served:
    weights, onnx, torchscript = at.weights(s.model), at.engine("onnx", s.model), at.engine("torchscript", s.model)
    delay = f"max_queue_delay_microseconds: {s.max_queue_delay_microseconds}"
    if s.strategy == "direct":
        strategy = f"direct {{ {delay} minimum_slot_utilization: {s.minimum_slot_utilization} }}"
    else:
        strategy = f"oldest {{ max_candidate_sequences: {s.max_candidate_sequences} {delay} }}"
    by_number = s.correlation_id == "uint64"
    values: dict[str, Any] = {
        "instance_kind": at.instance_kind,
        "model_path": weights.path,
        "run_dir": at.run_dir,
        "vocab_size": weights.vocab_size,
        "max_batch_size": s.max_batch_size,
        "instances": s.instances,
        "max_sequence_idle_microseconds": s.max_sequence_idle_microseconds,
        "sampling": s.sampling,
        "strategy": strategy,
        "corr_id_control": CORR_ID if by_number else None,
        "generator": s.generator,
        "generator_input": "INPUT_TOKEN_IDS" if s.generator == "onnx" else "INPUT__0",
        "generator_output": "OUTPUT_LOGITS" if s.generator == "onnx" else "OUTPUT__0",
    }
    if s.backends == "python":
        values["threads"] = s.threads
    else:
        at.require("gpu", "backends=native")
    whole = {"sequence_id": 900 if by_number else "probe", "sequence_start": True, "sequence_end": True}
    return Served(
        repository=["sequence-batcher", f"sequence-batcher.{s.backends}"],
        parameters=values,
        optional=["corr_id_control"],
        links={
            "generator_onnx/1/model.onnx": f"{onnx}/model.onnx",
            "generator_torchscript/1/model.pt": f"{torchscript}/model.pt",
        },
        probes={
            "generator_onnx": Probe({"inputs": [tensor("INPUT_TOKEN_IDS", "INT64", [0, 1])]}),
            "generator_torchscript": Probe({"inputs": [tensor("INPUT__0", "INT64", [0, 1])]}),
            "ensemble_pipeline": Probe({"inputs": [tensor("INPUT_TOKENS", "BYTES", ["Hello"])], "parameters": whole}),
        },
        tokenizer=weights,
        env={"OMP_WAIT_POLICY": "PASSIVE"},  # two generators share the cores: the idle one must not spin
        args=["--log-verbose=1", f"--log-file={at.run_dir}/triton.log"] if s.log_verbose else [],
        image_only="backends=python" if s.backends == "native" else None,
    )


def tensor(name: str, datatype: str, data: list[Any]) -> dict[str, Any]:
    return {"name": name, "shape": [1, len(data)], "datatype": datatype, "data": data}


SEQUENCE_BATCHER = Stack(
    name="sequence-batcher",
    title="tokenizer behind a sequence batcher, two generators, detokenizer, and an ensemble of them",
    models=["tokenizer", "generator_onnx", "generator_torchscript", "detokenizer", "ensemble_pipeline"],
    serve=serve,
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    phases: dict[str, dict[str, Any]] = {"direct": {"strategy": "direct"}, "oldest": {"strategy": "oldest"}}
    if not lab.quick:
        phases["torchscript"] = {"strategy": "direct", "generator": "torchscript"}
    phases["direct-slots"] = {"strategy": "direct", "log_verbose": True}
    phases["oldest-slots"] = {"strategy": "oldest", "log_verbose": True}
    if not lab.quick:
        phases["backlog"] = {
            "strategy": "direct",
            "max_batch_size": 2,
            "instances": 2,
            "clients": 6,
            "log_verbose": True,
        }
    for phase, settings in phases.items():
        with lab.serving(SEQUENCE_BATCHER, **settings) as server:
            server.client("client.py", phase)
    if not lab.quick:
        with lab.serving(
            SEQUENCE_BATCHER,
            strategy="oldest",
            max_candidate_sequences=2,
            instances=1,
            max_sequence_idle_microseconds=1_000_000,
            log_verbose=True,
        ) as server:
            server.client("semantics.py", "semantics")
    lab.report("report.py")
    yield Verdict(
        name="direct-keeps-the-slot",
        value="direct.kept_slot",
        at_least=1.0,
        text="direct: {value:.0%} of the sequences kept one slot to their end; mean batch {m[direct.mean_batch]:.2f}, "
        "and {m[direct.mean_empty]:.2f} empty rows",
    )
    yield Verdict(
        name="oldest-moves",
        value="oldest.moved",
        at_least=0.05,
        timed=True,  # rows change only where requests of several sequences meet
        text="oldest: {value:.0%} of the sequences changed rows; mean batch {m[oldest.mean_batch]:.2f}; a step took "
        "{m[oldest.time_per_output_token.p50]:.1f} ms (direct: {m[direct.time_per_output_token.p50]:.1f})",
    )
    yield Verdict(
        name="timeline-agrees",
        value="slots.disagreements",
        at_most=0,
        text="slots: {value:.0f} disagreements between Triton's log and the model's own log, over "
        "{m[slots.requests]} requests",
    )


LAB = Lab(
    short="sequence",
    title="Sequence batcher with GPT-2",
    summary="Every request of a sequence reaches the same model instance; under Direct in a slot of its own, under "
    "Oldest in any row.",
    settings=Settings,
    serves=[SEQUENCE_BATCHER],
    run=run,
    guess=Guess(
        question="Four sequences take turns under the strategy Oldest. What share of them changes rows in the batch?",
        value="oldest.moved",
        unit="%",
    ),
)
