"""Lab 01 in real containers: exported there, each greedy step the model's own, the slots as Triton and model tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpt2_reference import Reference
from machinery import labctl, leftovers, status

from labkit.client.sequences import SequenceClient, identifiers, run_sequences
from labkit.evidence import slots, steplog
from labkit.evidence.records import RequestRecord

pytestmark = pytest.mark.night

MODEL = "ensemble_pipeline"
STACK = "sequence-batcher"
STEPS = 5


@pytest.mark.parametrize(("strategy", "generator"), [("direct", "onnx"), ("oldest", "torchscript")])
def test_each_greedy_step_is_hugging_faces_and_the_slots_agree(own: Path, strategy: str, generator: str) -> None:
    chosen = {"strategy": strategy, "generator": generator, "sampling": "greedy", "log_verbose": "true"}
    assignments = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    labctl("up", STACK, "--runtime", "compose", "--ports", "auto", *assignments, root=own)
    shown = status(own, STACK)
    records = [RequestRecord(city, MODEL, f"I have lived in {city}") for city in ("London", "Paris", "Berlin", "Seoul")]
    ids = identifiers(len(records), "uint64")
    run_sequences(lambda: SequenceClient(shown["endpoints"]["http"], MODEL), records, ids, STEPS)

    reference = Reference(shown["settings"]["tokenizer_dir"])
    for record in records:
        text = record.prompt
        for _, token in record.responses:
            assert token in reference.step(text)
            text += token
    run_dir = own / ".labs" / STACK / "run"
    steps = steplog.read_step_log(run_dir, "tokenizer", since=min(record.start for record in records))
    found = slots.timeline(slots.read_slot_log(run_dir / "triton.log", "tokenizer"), ids)
    assert slots.disagreements(found, steps, strategy == "direct") == []
    assert sum(len(stay.requests) for stay in found.stays) == len(records) * STEPS
    labctl("down", STACK, root=own)
    assert leftovers(own, STACK) == []
