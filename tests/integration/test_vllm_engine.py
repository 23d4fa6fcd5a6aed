"""vLLM behind ``tensorrt_llm`` on a real Triton: what its scheduler decides, and that our account of it is true.

One server for all: a cache of 10 blocks of 32 tokens, 64 tokens a step, three sequences, in fp32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from checkout import ROOT
from machinery import labctl
from pacing import await_held, standing
from waiting import DEADLINE_S, eventually

from labctl.clock import Clock
from labkit.client import metrics
from labkit.client.ask import TextStream, tensor, text_tensor
from labkit.client.trtllm import EngineStream
from labkit.evidence import steplog
from labkit.evidence.records import RequestRecord

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]
MODEL = "tensorrt_llm"
BLOCKS, BLOCK, BUDGET = 10, 32, 64
SETTINGS: dict[str, Any] = {
    "engine": "vllm",
    "model": "shipped:tiny-llama",
    "decoupled_mode": True,
    "exact": True,
    "max_num_sequences": 3,
    "max_tokens_in_paged_kv_cache": BLOCKS * BLOCK,
    "max_num_tokens": BUDGET,
    "enable_kv_cache_reuse": True,
}


@pytest.fixture
def server(lab_server: Any) -> Any:
    return lab_server("inflight-batching", **SETTINGS)


@pytest.fixture
def stream(server: Any) -> Iterator[EngineStream]:
    with EngineStream(server.grpc) as opened:
        yield opened


def prompt(start: int, length: int) -> list[int]:
    """Ids that begin with no other prompt's block."""
    return [3 + (start * 37 + index * index) % 300 for index in range(length)]


def answers(stream: TextStream, records: Sequence[RequestRecord]) -> list[list[int]]:
    for record in records:
        stream.wait(record, timeout=DEADLINE_S)
    assert not any(record.error for record in records)
    return [[int(id) for _, text in record.responses for id in text.split()] for record in records]


def steps(server: Any, records: Sequence[RequestRecord]) -> list[Any]:
    """The steps of these requests, once the log has their ends."""
    names = {record.id for record in records}

    def ended() -> list[Any] | None:
        found = [step for step in steplog.read_step_log(server.run_dir, MODEL) if names & set(step.ids)]
        return found if names <= {name for step in found for name in step.ended} else None

    return list(eventually(ended))


def greedy(ids: Sequence[int], count: int) -> list[int]:
    """What Hugging Face's model says, computed here."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        ROOT / "labs" / "shared" / "models" / "tiny-llama", dtype=torch.float32
    )
    with torch.inference_mode():
        made = model.generate(torch.tensor([list(ids)]), do_sample=False, max_new_tokens=count, min_new_tokens=count)
    return list(made[0, len(ids) :].tolist())


def test_the_answer_is_hugging_faces_to_the_last_token(stream: EngineStream) -> None:
    ids = prompt(1, 40)
    assert answers(stream, [stream.ask(ids, 12)]) == [greedy(ids, 12)]


def test_a_long_prompt_is_computed_in_pieces_of_the_budget(server: Any, stream: EngineStream) -> None:
    record = stream.ask(prompt(2, 150), 2, "pieces")
    answers(stream, [record])
    mine = steps(server, [record])
    assert [(step.phase, step.tokens) for step in mine] == [("p", [64]), ("p", [64]), ("p", [22]), ("d", [1])]
    assert [step.made for step in mine] == [[0], [0], [1], [1]]
    assert [step.blocks for step in mine] == [[2], [4], [5], [5]]


def test_a_known_beginning_is_found_in_whole_blocks(server: Any, stream: EngineStream) -> None:
    ids = prompt(3, 96)
    found = []
    for name in ("first", "second"):
        record = stream.ask(ids, 2, name)
        answers(stream, [record])
        found.append(steps(server, [record])[0].cached)
    # Of 96 tokens the last must be computed for the next one: 95 // 32 whole blocks.
    assert found == [[0], [64]]


def test_preempted_requests_are_computed_again_and_answer_as_alone(server: Any, stream: EngineStream) -> None:
    prompts = [prompt(start, 60) for start in (4, 5, 6)]
    alone = [answers(stream, [stream.ask(ids, 90)])[0] for ids in prompts]
    with standing(server.run_dir, MODEL) as clock:
        together = [stream.ask(ids, 90, f"crowd{index}") for index, ids in enumerate(prompts)]
        await_held(clock, MODEL, len(together))
    assert answers(stream, together) == alone
    seen = steps(server, together)
    evicted = [name for step in seen for name in step.evicted]
    assert evicted, "three sequences of 150 tokens need 15 blocks of 10"
    again = [step for step in seen[1:] if set(step.joined) & set(evicted)]
    assert again and all("p" in step.phase for step in again), "a preempted request is prefilled again"
    waits = [step for step in seen if step.waiting and step.why == "no KV block"]
    assert waits
    for step in waits:
        because = step.because
        if not step.evicted:
            assert because["need"] + because["used"] + because["reserve"] > because["blocks"] == BLOCKS


def test_the_block_table_is_vllms_own(server: Any, stream: EngineStream) -> None:
    records = [stream.ask(prompt(start, 40), 40, f"table{start}") for start in (7, 8)]
    answers(stream, records)
    for step in steps(server, records):
        tables = step.block_ids
        held = [block for table in tables for block in table]
        assert [len(table) for table in tables] == step.blocks
        assert len(set(held)) == len(held) == step.kv_blocks_used, "each block has one owner here"
        assert all(1 <= block <= BLOCKS for block in held), "block 0 is vLLM's null block"


def test_a_cancelled_client_frees_its_blocks(server: Any) -> None:
    with EngineStream(server.grpc) as leaving:
        record = leaving.ask(prompt(9, 100), 200, "leaves")
        leaving.wait_first(record, timeout=DEADLINE_S)

    def why() -> str:
        lines = [
            json.loads(line)
            for path in server.run_dir.glob(f"steps-{MODEL}-*")
            for line in path.read_text().splitlines()
        ]
        return next((line["ended"][record.id] for line in lines if record.id in line.get("ended", {})), "")

    assert eventually(why) == "cancelled"
    eventually(lambda: metrics.scrape(server.metrics).own[MODEL, "labs_kv_blocks_used"] == 0)


def test_a_step_of_the_clock_is_one_step_of_vllm(server: Any, stream: EngineStream, checkout: Any) -> None:
    labctl("clock", "inflight-batching", "pause", root=checkout)
    try:
        records = [stream.ask(prompt(start, 20), 4, f"clock{start}") for start in (10, 11)]
        await_held(Clock(server.run_dir, (MODEL,)), MODEL, 2)
        before = len(steplog.read_step_log(server.run_dir, MODEL))
        for count in (1, 2):
            labctl("clock", "inflight-batching", "step", root=checkout)
            assert len(steplog.read_step_log(server.run_dir, MODEL)) == before + count
    finally:
        labctl("clock", "inflight-batching", "run", root=checkout)
    assert [len(answer) for answer in answers(stream, records)] == [4, 4]


@pytest.mark.parametrize(
    ("ids", "tokens", "more", "said"),
    [
        (prompt(12, 300), 30, {}, "request_output_len: 300 prompt and 30 output tokens are more than a sequence may"),
        ([5], 3, {"request_priority": 99}, "request_priority"),
    ],
)
def test_what_cannot_be_served_is_one_clear_error_and_the_server_lives(
    stream: EngineStream, ids: list[int], tokens: int, more: dict[str, Any], said: str
) -> None:
    refused = stream.ask(ids, tokens, **more)
    eventually(lambda: refused.end)
    assert said in refused.error
    assert len(answers(stream, [stream.ask([5], 3)])[0]) == 3


def test_status_says_what_vllm_made_of_the_settings(server: Any, checkout: Any) -> None:
    said = json.loads((server.run_dir / "effective.json").read_text())
    assert said["max_num_tokens"]["effective"] == str(BUDGET)
    assert said["batch_scheduler_policy"]["effective"] == "max_utilization"
    assert said["enable_kv_cache_reuse"]["effective"] == "true"
    assert "batch_scheduler_policy: max_utilization is in force" in labctl(
        "status", "inflight-batching", root=checkout
    ).stdout.replace("\n", " ")


def test_explain_names_vllms_reason(server: Any, stream: EngineStream, checkout: Any) -> None:
    with standing(server.run_dir, MODEL) as clock:
        records = [stream.ask(prompt(start, 10), 12, f"why{start}") for start in (13, 14, 15, 16)]
        await_held(clock, MODEL, len(records))
    answers(stream, records)
    steps(server, records)
    assert "no slot: 3 of 3 are taken" in labctl("explain", "inflight-batching", records[-1].id, root=checkout).stdout


def test_the_ensemble_of_lab_03_answers_in_front_of_it(server: Any) -> None:

    inputs = [
        text_tensor("text_input", "Once upon a time"),
        tensor("max_tokens", 6, np.uint32),
        text_tensor("bad_words", ""),
        text_tensor("stop_words", ""),
    ]
    with TextStream(server.grpc) as opened:
        record = opened.send_inputs("ensemble", "Once upon a time", inputs)
        opened.wait(record, timeout=DEADLINE_S)
    assert record.text.startswith("Once upon a time")
    client = grpcclient.InferenceServerClient(server.grpc)
    assert client.is_model_ready("ensemble")
    client.close()
