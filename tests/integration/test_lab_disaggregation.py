"""Lab 09 whole, and a hand-over on the wire: whose text it is, whom it is refused, and that a client may leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error
from lab_programs import unproven
from lab_server import LabServer
from machinery import labctl
from waiting import DEADLINE_S, eventually

from labkit.client import metrics
from labkit.client.ask import TextStream, tensor, text_tensor
from labkit.evidence import steplog

PROMPT = "I have lived in a village near the river for as long as people can remember"
FAST: dict[str, Any] = {"step_ms": 0, "token_ms": 0}


def test_the_whole_lab_runs_and_proves_its_verdicts(own: Path) -> None:
    labctl(
        *("run", "disaggregation", "--quick", "--runtime", "local", "--ports", "auto", "--output", "r.json"), root=own
    )
    assert unproven("disaggregation", json.loads((own / "r.json").read_text())) == []
    (out,) = (own / "results" / "09-disaggregation").iterdir()
    log = [json.loads(line) for line in (out / "router.jsonl").read_text().splitlines()]
    assert len(log) == 3 * (10 * 4 + 13)  # policies, and the requests of each load
    assert all(line["scores"][line["replica"]] == max(line["scores"].values()) for line in log)
    assert all(line["found"] is not None for line in log)  # how much: the verdict `the-router-knows`
    steps = [json.loads(line) for line in (out / "steps-routing.jsonl").read_text().splitlines()]
    logged = {name: route for step in steps for name, route in step.get("routes", {}).items()}
    assert {line["request"]: line["scores"] for line in log} == {n: route["scores"] for n, route in logged.items()}


def stream_of(server: LabServer) -> TextStream:
    return TextStream(server.grpc)


def handed_over(stream: TextStream, prompt: str = PROMPT, **parameters: Any) -> str:
    """The name under which a sequence waits for a server."""
    inputs = [text_tensor("text_input", prompt), tensor("hand_over", True, bool)]
    record = stream.send_inputs("apart-gpt2", prompt, inputs, output="handed_over", **parameters)
    stream.wait(record, timeout=DEADLINE_S)
    return record.text


def taken_over(stream: TextStream, name: str, prompt: str = PROMPT, **parameters: Any) -> str:
    inputs = [text_tensor("text_input", prompt), text_tensor("handed_over", name)]
    record = stream.send_inputs("apart-gpt2", prompt, inputs, **parameters)
    stream.wait(record, timeout=DEADLINE_S)
    return record.text


@pytest.mark.xdist_group("two-servers")
@pytest.mark.parametrize("sampled", [{}, {"seed": 7, "temperature": 1.5}, {"seed": 8, "top_k": 5}])
def test_a_request_that_is_handed_over_has_the_answer_of_one_server(
    lab_server: Callable[..., LabServer], sampled: dict[str, Any]
) -> None:
    asked = {"max_tokens": 24, "ignore_eos": True, **sampled}
    with stream_of(lab_server("two-servers", **FAST)) as stream:
        whole = stream.send("apart-gpt2", PROMPT, **asked)
        stream.wait(whole, timeout=DEADLINE_S)
        assert taken_over(stream, handed_over(stream, **asked), **asked) == whole.text


@pytest.mark.xdist_group("two-servers")
@pytest.mark.parametrize(
    ("name", "prompt", "tokens", "words"),
    [
        ("", PROMPT + " ", 8, "another text"),
        ("", PROMPT, 1, "the other server has made as many tokens already"),
        ("0" * 32, PROMPT, 8, "nothing of that name is there"),
        ("../steps-gpt2-0_0.jsonl", PROMPT, 8, "nothing of that name is there"),
    ],
    ids=["another text", "too few tokens", "unknown", "a path"],
)
def test_what_does_not_fit_is_refused_by_name(
    lab_server: Callable[..., LabServer], name: str, prompt: str, tokens: int, words: str
) -> None:
    server = lab_server("two-servers", **FAST)
    with stream_of(server) as stream:
        given = name or handed_over(stream, max_tokens=8)
    with stream_of(server) as stream, lab_error("model-error", words):
        taken_over(stream, given, prompt, max_tokens=tokens)


@pytest.mark.xdist_group("two-servers")
def test_an_answer_of_one_token_is_not_handed_over(lab_server: Callable[..., LabServer]) -> None:
    with stream_of(lab_server("two-servers", **FAST)) as stream:
        inputs = [text_tensor("text_input", PROMPT), tensor("hand_over", True, bool)]
        record = stream.send_inputs("apart-gpt2", PROMPT, inputs, max_tokens=1, ignore_eos=True)
        stream.wait(record, timeout=DEADLINE_S)
    assert record.text


def has_ended(server: LabServer, id: str) -> bool:
    """Whether the step log has the request's end. A gauge may still be the one of the time before it came."""
    texts = [path.read_text() for path in server.run_dir.glob("steps-apart-gpt2-*.jsonl")]
    whole = [line for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return any(id in json.loads(line).get("ended", {}) for line in whole)


@pytest.mark.xdist_group("two-servers")
def test_a_client_that_leaves_frees_its_slot_and_its_blocks_are_found(lab_server: Callable[..., LabServer]) -> None:
    server = lab_server("two-servers", **FAST)
    before = metrics.scrape(server.metrics)
    with stream_of(server) as stream:
        record = stream.send("apart-gpt2", PROMPT + " today", max_tokens=900, ignore_eos=True)
        stream.wait_first(record, timeout=DEADLINE_S)
    eventually(lambda: has_ended(server, record.id))
    with stream_of(server) as stream:
        again = stream.send("apart-gpt2", PROMPT + " today and", max_tokens=2)
        stream.wait(again, timeout=DEADLINE_S)

    def found() -> float:
        key = ("apart-gpt2", "labs_cached_tokens_total")
        return metrics.scrape(server.metrics).own[key] - before.own.get(key, 0.0)

    eventually(lambda: found() >= 16)
    eventually(
        lambda: any(
            16 in step.cached for step in steplog.read_step_log(server.run_dir, "apart-gpt2") if again.id in step.ids
        )
    )
