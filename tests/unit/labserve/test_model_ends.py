"""Every model of ours, as it is: each request ends, the step log tells how, and who has left costs nothing."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_backend import Request
from model_cases import CASES, ENGINE, ITERATIVE, LLAMA, SIMPLE, STREAMS, WAIT_S, Case, answered, ids, request, steps_of
from waiting import eventually

from labserve import driver
from labserve.observe.gauges import Gauges


@pytest.mark.parametrize("case", [case for case in CASES if "processing" not in case.path], ids=lambda case: case.path)
def test_the_step_log_tells_of_every_request_in_the_batch_and_of_its_end(
    case: Case, load: Callable[[Case], Any], tmp_path: Path
) -> None:
    model = load(case)
    answered(model, [request(case) for _ in range(3)])
    model.finalize()
    steps = steps_of(tmp_path)
    assert max(step.batch for step in steps) == (1 if case.path == "llama-python/llama-python" else 3)
    if "detokenizer" in case.path:
        assert all(step.made == [1] * 3 and step.texts for step in steps)
        return
    assert all(step.rows is not None for step in steps)
    if "tokenizer" in case.path:
        assert steps[0].seats and steps[0].start == [1, 1, 1]
        return
    joined = [name for step in steps for name in step.joined]
    assert sorted(joined) == sorted({name for step in steps for name in step.ids})
    assert {name: why for step in steps for name, why in step.ended.items()} == dict.fromkeys(joined, "length")
    assert all(step.tokens and step.made for step in steps)
    assert all(step.texts is not None and len(step.texts) == step.batch for step in steps)
    asked = case.good.get("request_output_len", case.good.get("max_tokens"))
    wanted = int(np.ravel(asked)[0]) if asked is not None else json.loads(case.parameters)["max_tokens"]
    made = Counter[str]()
    for step in steps:
        made.update(dict(zip(step.ids, step.made or [], strict=True)))
    assert made == dict.fromkeys(joined, wanted)


def test_the_step_log_keeps_the_numbers_of_each_refusal(load: Callable[[Case], Any], tmp_path: Path) -> None:
    model = load(replace(ENGINE, filled={**ENGINE.filled, "max_num_sequences": 16}))
    answered(model, [request(ENGINE, {"request_output_len": ids(90)}) for _ in range(8)])
    model.finalize()
    refused = [step for step in steps_of(tmp_path) if step.why == "no KV block"]
    assert refused and all(step.because["used"] == step.kv_blocks_used for step in refused)
    for because in (step.because for step in refused):
        assert because["need"] + because["used"] + because["reserve"] > because["blocks"] == 100


def test_a_preempted_request_is_named_waits_and_joins_again(load: Callable[[Case], Any], tmp_path: Path) -> None:
    words = {name: "max_utilization" for name in ENGINE.filled if name.endswith("batch_scheduler_policy")}
    model = load(replace(ENGINE, filled={**ENGINE.filled, **words, "max_num_sequences": 16}))
    answers = answered(model, [request(ENGINE, {"request_output_len": ids(90)}) for _ in range(16)])
    model.finalize()
    assert not any(answer.error for answer in answers)
    steps = steps_of(tmp_path)
    evictions = [(step, name) for step in steps for name in step.evicted]
    assert evictions
    for step, name in evictions:
        assert name not in step.ids and name in step.waiting
    joined = Counter(name for step in steps for name in step.joined)
    assert joined == Counter(name for _, name in evictions) + Counter({name for step in steps for name in step.ids})


def test_the_gauges_say_who_waits_and_fall_to_zero_when_nobody_is_left(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, float]] = []
    update = Gauges.update

    def noted(gauges: Gauges, **values: float) -> None:
        if "running" in values:
            shown.append({name: values[name] for name in ("running", "waiting", "kv_blocks_used")})
        update(gauges, **values)

    monkeypatch.setattr(Gauges, "update", noted)
    model = load(replace(ENGINE, filled={**ENGINE.filled, "max_num_sequences": 2}))
    long = [request(ENGINE, {"request_output_len": ids(60)}) for _ in range(6)]
    ends = [threading.Event() for _ in long]
    for each, end in zip(long, ends, strict=True):
        each.when_final = end.set
    model.execute(long)
    eventually(lambda: any((values["running"], values["waiting"]) == (2, 4) for values in shown))
    assert all(end.wait(WAIT_S) for end in ends)
    eventually(lambda: not any(shown[-1].values()))


def test_a_request_whose_client_is_gone_is_not_generated_to_its_end(load: Callable[[Case], Any]) -> None:
    model = load(LLAMA)
    long = request(LLAMA, {"max_tokens": np.array([900])})
    long.cancelled = True
    (response,) = answered(model, [long])
    assert "cancelled" in response.error


def test_an_answer_that_takes_too_long_ends_with_an_error_that_says_what_to_do(load: Callable[[Case], Any]) -> None:
    model = load(LLAMA)
    model.generator._most_seconds = 0.0
    (response,) = answered(model, [request(LLAMA, {"max_tokens": np.array([900])})])
    assert response.error.startswith("max_tokens: after 0 s ")


def test_the_server_is_not_asked_at_every_step_whether_each_client_is_still_there(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question is a message there and back between two steps, and the engine stands idle for it."""
    monkeypatch.setattr(driver, "ASK_S", 1e9)
    model = load(ENGINE)
    asked: list[Request] = []

    def is_cancelled(each: Request) -> bool:
        asked.append(each)
        return False

    monkeypatch.setattr(Request, "is_cancelled", is_cancelled)
    answered(model, [request(ENGINE, {"request_output_len": ids(90)})])
    assert len(asked) == 1, "once, before it joins"


def test_who_leaves_the_queue_or_a_seat_is_forgotten_and_the_others_are_answered(load: Callable[[Case], Any]) -> None:
    model = load(replace(STREAMS, filled={"seats": 2, "step_ms": 20}))
    asked = [Request({**STREAMS.good, "max_tokens": ids(1000)}, id="1") for _ in range(5)]
    ends = [threading.Event() for _ in asked]
    for each, end in zip(asked, ends, strict=True):
        each.when_final = end.set
    model.execute(asked)
    eventually(lambda: all(len(each.responses) > 1 for each in asked[:2]))
    asked[2].cancelled = asked[0].cancelled = True  # one that waits, one in a seat
    eventually(lambda: len(asked[3].responses) > 1)
    assert ends[0].is_set() and ends[2].is_set()
    assert len(asked[2].responses) == 1
    for each in asked:
        each.cancelled = True
    assert all(end.wait(WAIT_S) for end in ends)
    here, names = model.driver.scheduler, model.driver.recorder._names
    eventually(lambda: (here.slots.used, len(here.waiting), len(names._live)) == (0, 0, 0))


@pytest.mark.parametrize("flags", [0, 1])
def test_two_clients_that_share_a_sequence_id_are_both_answered_by_a_model_without_sequences(
    load: Callable[[Case], Any], flags: int
) -> None:
    first, second = (request(SIMPLE) for _ in range(2))
    first._correlation = second._correlation = 7
    first._flags, second._flags = 1, flags
    answered(load(SIMPLE), [first, second])
    assert first.final and second.final and not first.error and not second.error


def test_a_sequence_id_may_be_a_text(load: Callable[[Case], Any]) -> None:
    asked = request(ITERATIVE)
    asked._correlation, asked._flags = "p-7", 1  # type: ignore[assignment]
    answered(load(ITERATIVE), [asked])
    assert asked.final and not asked.error


def test_two_sequences_with_ids_that_look_alike_hold_a_slot_each(load: Callable[[Case], Any], tmp_path: Path) -> None:
    number, text = request(ITERATIVE), request(ITERATIVE)
    number._correlation, text._correlation = 7, "7"  # type: ignore[assignment]
    model = load(ITERATIVE)
    answered(model, [number, text])
    model.finalize()
    (step,) = [step for step in steps_of(tmp_path) if step.ids]
    assert len({*step.ids}) == len({*(step.rows or [])}) == 2
    assert model.running.scheduler.slots.used == 0
