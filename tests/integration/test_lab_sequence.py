"""Lab 01 on a real Triton: both strategies, both generators, the slots, and what a sequence may not do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from checkout import ROOT
from gpt2_reference import Reference
from lab_errors import lab_error
from lab_programs import unproven
from lab_server import LabServer
from machinery import labctl
from tritonclient.utils import InferenceServerException
from waiting import DEADLINE_S, eventually

from labctl.artifacts import engines
from labctl.workspace import Workspace
from labkit.client.sequences import SequenceClient, identifiers, run_sequences
from labkit.evidence import slots, steplog
from labkit.evidence.records import RequestRecord

MODEL = "ensemble_pipeline"
STACK = "sequence-batcher"
STEPS = 10
PROMPTS = [
    "I have lived in London",
    "I have lived in Paris",
    "I have lived in Berlin",
    "I have lived in Seoul",
    "Every morning the",
    "Un café, ein Mädchen, 서울",
]  # more than the four slots of Direct

reference = cache(Reference)
ids = iter(range(10_000, 1_000_000, 100))  # correlation ids that no other test has used


@pytest.fixture(scope="module", params=["direct-onnx", "oldest-torchscript", "direct-torchscript", "oldest-onnx"])
def server(request: pytest.FixtureRequest, lab_server: Callable[..., LabServer]) -> LabServer:
    """Greedy, with the verbose log, which the timeline is read from."""
    strategy, generator = request.param.split("-")
    return lab_server(
        STACK,
        strategy=strategy,
        generator=generator,
        sampling="greedy",
        log_verbose=True,
        threads=1,
        max_sequence_idle_microseconds=600_000_000,
    )


def client(server: LabServer, protocol: str = "http") -> SequenceClient:
    return SequenceClient(getattr(server, protocol), MODEL, protocol, server.settings["correlation_id"])


def play(server: LabServer, protocol: str = "http") -> tuple[list[RequestRecord], list[int | str]]:
    """One sequence for each prompt, all at once."""
    records = [RequestRecord(prompt, MODEL, prompt) for prompt in PROMPTS]
    names = identifiers(len(PROMPTS), server.settings["correlation_id"], next(ids))
    run_sequences(lambda: client(server, protocol), records, names, STEPS)
    return records, names


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_greedy_step_is_hugging_faces_on_the_same_text(
    server: LabServer, protocol: str, record_property: Callable[[str, Any], None]
) -> None:
    hf = reference(server.settings["tokenizer_dir"])
    records, _ = play(server, protocol)
    for record in records:
        text = record.prompt
        for _, token in record.responses:
            assert token in hf.step(text), text
            text += token
    # Text is not its tokens: encoded again, it may be spelled with others. So this is a share, and no promise.
    whole = sum(record.text == hf.generate(record.prompt, STEPS) for record in records)
    record_property("equal_to_one_uninterrupted_generation", f"{whole}/{len(records)}")
    print(f"{whole} of {len(records)} answers are those of one uninterrupted generation")


def test_the_slot_timeline_agrees_with_what_the_model_itself_counted(server: LabServer) -> None:
    direct = server.settings["strategy"] == "direct"
    records, names = play(server)
    since = min(record.start for record in records)
    own = steplog.read_step_log(server.run_dir, "tokenizer", since)
    found = slots.timeline(slots.read_slot_log(server.run_dir / "triton.log", "tokenizer"), names)
    assert slots.disagreements(found, own, direct) == []
    assert sum(step.batch for step in own) == len(PROMPTS) * STEPS == sum(len(stay.requests) for stay in found.stays)
    assert sum(sum(step.more["start"]) for step in own) == sum(sum(step.more["end"]) for step in own) == len(PROMPTS)
    executions = slots.with_rows(found, own).executions
    assert all(len(execution.rows) == execution.size for execution in executions)
    if direct:
        assert all(len(places) == 1 for places in slots.executed_places(own).values()), "a sequence left its row"
    else:
        assert not found.waits, "there are places enough for all"


def test_who_finds_no_place_waits_for_the_end_of_another_sequence(server: LabServer) -> None:
    direct = server.settings["strategy"] == "direct"
    places = server.settings["max_batch_size" if direct else "max_candidate_sequences"]
    first = next(ids)
    late = first + places

    def told() -> slots.Timeline:
        return slots.timeline(slots.read_slot_log(server.run_dir / "triton.log", "tokenizer"), range(first, late + 1))

    with client(server) as asked, ThreadPoolExecutor(1) as pool:
        for id in range(first, late):
            asked.ask("I have lived in", id, start=True)
        answer = pool.submit(lambda: client(server).ask("Anna", late, start=True, end=True))
        eventually(lambda: [wait.id for wait in told().waits] == [str(late)])
        for id in range(first, late):
            asked.ask("I have lived in", id)
        assert not answer.done(), "another step of all who have a slot does not let it in"
        for id in range(first, late):
            asked.ask("I have lived in London", id, end=True)
        assert answer.result(timeout=DEADLINE_S)
    found = told()
    (wait,) = found.waits
    (stay,) = (stay for stay in found.stays if stay.id == str(late))
    assert stay.began == wait.ended > wait.began


@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc])
def test_the_answer_is_one_dimensional_and_the_version_may_be_named(server: LabServer, protocol: Any) -> None:
    with protocol.InferenceServerClient(server.http if protocol is tritonclient.http else server.grpc) as triton:
        tensor = protocol.InferInput("INPUT_TOKENS", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[b"I have lived in"]], dtype=np.object_))
        result = triton.infer(
            MODEL, [tensor], model_version="1", sequence_id=next(ids), sequence_start=True, sequence_end=True
        )
    tokens = result.as_numpy("NEXT_TOKENS")
    assert tokens.shape == (1,)
    assert {token.decode() for token in tokens} <= reference(server.settings["tokenizer_dir"]).step("I have lived in")


def test_both_generators_give_the_logits_of_the_weights(server: LabServer) -> None:
    import torch

    hf = reference(server.settings["tokenizer_dir"])
    rows = np.array([[5, 7, 11], [2, 3, 4]], dtype=np.int64)
    with torch.inference_mode():
        expected = hf.model(torch.from_numpy(rows)).logits.numpy()
    with tritonclient.http.InferenceServerClient(server.http) as triton:
        for model, name, output in (
            ("generator_onnx", "INPUT_TOKEN_IDS", "OUTPUT_LOGITS"),
            ("generator_torchscript", "INPUT__0", "OUTPUT__0"),
        ):
            tensor = tritonclient.http.InferInput(name, list(rows.shape), "INT64")
            tensor.set_data_from_numpy(rows)
            found = triton.infer(model, [tensor]).as_numpy(output)
            np.testing.assert_allclose(found, expected, atol=1e-3)


BAD = {"empty": b"", "not UTF-8": b"\xff", "too many tokens": b"word " * 3000, "a megabyte": b"w" * 2**20}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_bad_text_is_answered_with_an_error_that_names_the_input(server: LabServer, text: bytes) -> None:
    with tritonclient.http.InferenceServerClient(server.http) as triton:
        tensor = tritonclient.http.InferInput("INPUT_TOKENS", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text]], dtype=np.object_))
        with pytest.raises(InferenceServerException, match="INPUT_TOKENS: "):
            triton.infer(MODEL, [tensor], sequence_id=next(ids), sequence_start=True, sequence_end=True)
    with client(server) as asked:
        assert asked.ask("I have lived in", next(ids), start=True, end=True)


def test_a_sequence_must_begin_with_start_and_is_over_after_end(server: LabServer) -> None:
    with client(server) as asked:
        with lab_error("sequence-refused") as never_begun:
            asked.ask("I have", next(ids))
        over = next(ids)
        asked.ask("I have", over, start=True, end=True)
        with lab_error("sequence-refused") as ended:
            asked.ask("I have", over)
    for caught in (never_begun, ended):
        assert "must specify the START flag on the first request of the sequence" in caught.value.why


FEW: dict[str, Any] = {
    "correlation_id": "string",
    "strategy": "oldest",
    "max_candidate_sequences": 2,
    "threads": 1,
    "log_verbose": True,
}


@pytest.fixture(scope="module")
def forgetful(lab_server: Callable[..., LabServer]) -> LabServer:
    """Few sequences have a place, and one that is idle is dropped soon; no answer takes as long."""
    return lab_server(STACK, **FEW, max_sequence_idle_microseconds=10_000_000)


@pytest.fixture(scope="module")
def named(lab_server: Callable[..., LabServer]) -> LabServer:
    """Correlation ids are texts, and few sequences have a place."""
    return lab_server(STACK, **FEW, max_sequence_idle_microseconds=600_000_000)


TOLD = {
    "the first request has no START": "must specify the START flag on the first request of the sequence",
    "a request after END": "must specify the START flag on the first request of the sequence",
    "START again in the middle of a sequence": "conflict",
    "nothing sent for longer than 10 s": "max sequence idle exceeded",
    "3 sequences where 2 have a place": "into new backlog",
    "a correlation id of the other type": "is not of the type that this server declares",
}


def test_what_the_lab_tells_of_broken_rules_is_what_triton_says(forgetful: LabServer, tmp_path: Path) -> None:
    given = {
        "lab": STACK,
        "stack": STACK,
        "phase": "semantics",
        "profile": "cpu",
        "runtime": "local",
        "quick": False,
        "endpoints": {"http": forgetful.http, "grpc": forgetful.grpc},
        "settings": forgetful.settings,
        "out": str(tmp_path),
        "run_dir": str(forgetful.run_dir),
        "tokenizer_dir": "",
    }
    (tmp_path / "context.json").write_text(json.dumps(given))
    script = ROOT / "labs" / "01-sequence-batcher" / "semantics.py"
    subprocess.run([sys.executable, script, tmp_path / "context.json"], check=True, timeout=600)
    said = {entry["what"]: entry for entry in json.loads((tmp_path / "semantics.json").read_text())["said"]}
    assert set(said) == set(TOLD)
    for what, words in TOLD.items():
        assert words in " ".join([said[what]["answer"], *said[what]["log"]]), said[what]
    assert TOLD["a request after END"] in said["nothing sent for longer than 10 s"]["answer"]
    assert said["START again in the middle of a sequence"]["answer"].startswith("answered")


def test_sequences_may_be_named_with_texts(named: LabServer) -> None:
    records, names = play(named)
    assert all(len(record.responses) == STEPS for record in records)
    seen = {id for step in steplog.read_step_log(named.run_dir, "tokenizer") for id in step.ids}
    assert set(map(str, names)) <= seen


def test_the_client_refuses_a_correlation_id_of_the_other_type(named: LabServer) -> None:
    with client(named) as asked, lab_error("correlation-id-type"):
        asked.ask("I have", 1001, start=True, end=True)


def test_what_is_sampled_is_text_whatever_is_drawn(named: LabServer) -> None:
    """Multinomial from a text that the model has never seen: every answer is at least one whole character."""
    with client(named) as asked:
        drawn = [asked.ask("서울 ☃ \N{OLD PERSIAN SIGN A}", "drawn", start=n == 0, end=n == 39) for n in range(40)]
    assert all(drawn)
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in drawn)
    assert len(set(drawn)) > 1


@pytest.mark.parametrize("fault", ["truncated", "swapped"])
def test_a_damaged_export_is_refused_before_anything_starts(
    own: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    broken = Workspace(ROOT, tmp_path / "cache")
    exports = [engines.request(name, "shipped:tiny-gpt2", {}) for name in ("onnx", "torchscript")]
    for export in exports:
        shutil.copytree(export.make(Workspace(ROOT, cache), print), export.locate(broken))
    onnx, torchscript = (export.locate(broken) / export.engine.essential[0] for export in exports)
    size = onnx.stat().st_size
    if fault == "truncated":
        os.truncate(onnx, size // 2)
    else:  # the other file at its size, so that only the hash can tell
        onnx.write_bytes(torchscript.read_bytes()[:size].ljust(size, b"\0"))
    monkeypatch.setenv("LABS_CACHE", str(broken.cache))
    done = labctl("up", STACK, "--runtime", "local", "--ports", "auto", root=own, check=False)
    assert done.returncode == 1
    assert f"{onnx} is damaged" in done.stderr and "labctl engines prune onnx-" in done.stderr
    assert json.loads(labctl("status", STACK, "--json", root=own).stdout)["state"] == "absent"


def test_the_lab_proves_its_lesson_and_draws_the_slots(own: Path) -> None:
    labctl("run", "sequence", "--quick", "--runtime", "local", "--ports", "auto", "--output", "r.json", root=own)
    (folder,) = (own / "results" / "01-sequence-batcher").iterdir()
    assert unproven("sequence", json.loads((own / "r.json").read_text())) == []
    timelines = json.loads((folder / "slots.json").read_text())
    seen = {name: sorted(stay["id"] for stay in data["stays"]) for name, data in timelines.items()}
    assert set(seen) == {"direct-slots", "oldest-slots"}
    assert all(ids == ["1001", "1002", "1003", "1004"] for ids in seen.values())
    assert (folder / "direct-slots.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((folder / "trace.json").read_text())["traceEvents"]) > 8 * STEPS
    assert "| oldest | onnx |" in " ".join((folder / "report.md").read_text().split())
