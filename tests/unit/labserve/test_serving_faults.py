"""One request's fault stays that request's: a send that fails, a client that goes, a sequence without tokens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_backend import RESCHEDULE, Request, Response
from model_cases import CASES, STREAMS, WAIT_S, Case, answered, ids, request, says_nothing_of_the_code, steps_of

from labserve import driver
from labserve.gpt2.running import PATIENCE_S
from labserve.observe import watched_log

CASE = {case.path: case for case in CASES}
LLM = CASE["llm/tensorrt_llm"]
STREAMED = replace(
    LLM, good={**LLM.good, "streaming": np.array([[True]])}, filled={**LLM.filled, "decoupled_mode": "true"}
)
ITERATIVE = CASE["iterative/iterative-gpt2"]
ITERATIVE = replace(ITERATIVE, filled={**ITERATIVE.filled, "max_sequence_idle_microseconds": 10**9})
STREAMING = {
    "streamed": STREAMED,
    "unary": LLM,
    "simple": CASE["iterative/simple-gpt2"],
    "iterative": ITERATIVE,
    "streams": STREAMS,
}


def breaks(asked: Request, after: int = 0) -> Request:
    """A request whose responses cannot be sent after the first few; an error can."""
    send = asked.send

    def full(response: Response, flags: int = 0) -> None:
        if not response.error and len(asked.responses) >= after:
            raise RuntimeError("Failed to increase the shared memory pool size for key '/dev/shm/labs-x'")
        send(response, flags)

    asked.send = full  # type: ignore[method-assign]
    return asked


def finish(model: Any, asked: list[Request]) -> None:
    """Execute requests until each has its final response, as Triton schedules them."""
    ends = [threading.Event() for _ in asked]
    for each, end in zip(asked, ends, strict=True):
        each.when_final = end.set
    model.execute(asked)
    while again := [each for each in asked if each.flags_out == RESCHEDULE and not each.final]:
        for each in again:
            each._flags = each.flags_out = 0
        model.execute(again)
    assert all(end.wait(60) for end in ends), "a request without its final response"


@pytest.mark.parametrize("case", STREAMING.values(), ids=STREAMING)
@pytest.mark.parametrize("after", [0, 1])
def test_fault_42_one_failing_send_ends_that_request_and_nobody_else_notices(
    case: Case, after: int, load: Callable[[Case], Any]
) -> None:
    model, longer = load(case), '{"max_tokens": 4, "ignore_eos": true}' if case.parameters else ""
    case = replace(case, parameters=longer)
    alone = request(case)
    finish(model, [alone])
    good, bad = [request(case) for _ in range(2)], breaks(request(case), after)
    finish(model, [good[0], bad, good[1]])
    if after == 0 or len(alone.responses) > 1:
        assert "internal error in" in bad.error
        says_nothing_of_the_code(bad.error)
    assert not any(each.error for each in good)
    assert [len(each.responses) for each in good] == [len(alone.responses)] * 2
    later = request(case)
    finish(model, [later])
    assert not later.error


def test_an_answer_that_lost_a_piece_ends_with_the_error_and_nothing_follows(load: Callable[[Case], Any]) -> None:
    """One message fails, and the next ones would not: the answer has a hole, and must not end as a whole one."""
    model = load(STREAMED)
    asked = request(STREAMED, {"request_output_len": ids(9)})
    send, sent = asked.send, list[str]()

    def once(response: Response, flags: int = 0) -> None:
        sent.append(response.error)
        if len(sent) == 2:
            raise RuntimeError("no room in /dev/shm/labs-x")
        send(response, flags)

    asked.send = once  # type: ignore[method-assign]
    finish(model, [asked])
    model.finalize()
    assert len(asked.responses) == 2 and "internal error in" in asked.error
    assert len(sent) == 3, "a token, the one that failed, and the error"


def test_the_next_step_waits_for_no_message_of_an_answer(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, third = load(STREAMED), threading.Event()
    engine, steps = model.driver.scheduler.engine, list[int]()
    step = engine.step

    def counted() -> None:
        step()
        steps.append(len(steps))
        if len(steps) == 3:
            third.set()

    monkeypatch.setattr(engine, "step", counted)
    asked = request(STREAMED, {"request_output_len": ids(9)})
    send = asked.send

    def late(response: Response, flags: int = 0) -> None:
        assert third.wait(WAIT_S), "the engine stands still until the message is there"
        send(response, flags)

    asked.send = late  # type: ignore[method-assign]
    finish(model, [asked])
    assert not asked.error and len(asked.responses) == 9


def test_a_waiting_request_whose_client_cannot_be_asked_after_is_answered(load: Callable[[Case], Any]) -> None:
    def no_room() -> bool:
        raise RuntimeError("Failed to increase the shared memory pool size for key '/dev/shm/labs-x'")

    asked = request(STREAMS)
    asked.is_cancelled = no_room  # type: ignore[method-assign]
    finish(load(STREAMS), [asked])
    assert "internal error in" in asked.error


def test_fault_42_one_answer_that_cannot_be_made_leaves_the_others_of_a_codegen_batch_alone(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASE["codegen/codegen-350M-mono-gptj"]
    model = load(case)
    made = type(model.rows)._response.__globals__["pb_utils"]
    tensor, count = made.Tensor, []

    def full(name: str, array: Any) -> Any:
        count.append(name)
        if len(count) == 1:
            raise RuntimeError("no room in /dev/shm/labs-x")
        return tensor(name, array)

    monkeypatch.setattr(made, "Tensor", full)
    first, second = answered(model, [request(case), request(case)])
    assert first.error.startswith("internal error in codegen")
    assert not second.error


@pytest.mark.parametrize(
    ("of", "method", "said"),
    [("recorder", "record", "internal error in tensorrt_llm"), ("scheduler", "line", "the step failed")],
)
def test_fault_26_what_fails_beside_a_step_ends_its_requests_and_the_next_ones_are_answered(
    of: str, method: str, said: str, load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 26: an exception in the scheduler's thread, outside the step: a disk that is gone, a line of one's own."""
    model = load(LLM)
    part, failures = getattr(model.driver, of), [OSError("the disk is gone: /run/steps")]
    works = getattr(part, method)

    def once(*told: Any) -> Any:
        if failures:
            raise failures.pop()
        return works(*told)

    monkeypatch.setattr(part, method, once)
    told = answered(model, [request(LLM, {"request_output_len": ids(90)}) for _ in range(3)])
    assert all(said in each.error for each in told)
    assert not answered(model, [request(LLM)])[0].error


def test_a_step_that_does_not_end_does_not_keep_its_model_from_being_unloaded(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(LLM)
    begun, may_end = threading.Event(), threading.Event()

    def endless(_: Any) -> Any:
        begun.set()
        may_end.wait(60)
        raise RuntimeError("it was endless")

    monkeypatch.setattr(model.driver.scheduler, "step", endless)
    monkeypatch.setattr(driver, "END_S", 0.05)
    model.execute([request(LLM)])
    assert begun.wait(60)
    model.finalize()
    assert model.driver.thread.is_alive()
    may_end.set()
    model.driver.thread.join(60)
    assert not model.driver.thread.is_alive()


def test_what_an_unloaded_model_has_not_finished_ends_with_an_error(load: Callable[[Case], Any]) -> None:
    model = load(replace(STREAMS, filled={**STREAMS.filled, "seats": 1}))
    running, waiting = (request(STREAMS, {"max_tokens": ids(1000)}) for _ in range(2))
    begun = threading.Event()
    send = running.send

    def noted(*answer: Any) -> None:
        send(*answer)
        begun.set()

    running.send = noted  # type: ignore[method-assign, assignment]
    model.execute([running, waiting])
    assert begun.wait(60)
    model.finalize()
    for each in (running, waiting):
        assert each.final and each.error == "the model is being unloaded"


@pytest.mark.parametrize("case", [LLM, STREAMED], ids=["unary", "streamed"])
@pytest.mark.parametrize("gives_up", [False, True])
def test_a_sequence_that_the_engine_ends_without_a_token_gets_its_final_response(
    case: Case, gives_up: bool, load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(case)
    read = model.driver.scheduler.engine.read
    reads: list[int] = []

    def ends(handle: int) -> tuple[list[int], bool]:
        reads.append(handle)
        if len(reads) == 1:
            return read(handle)
        if gives_up:
            raise RuntimeError("the engine gave the sequence up")
        return [], True

    monkeypatch.setattr(model.driver.scheduler.engine, "read", ends)
    asked = request(case, {"request_output_len": ids(9)})
    finish(model, [asked])
    assert bool(asked.error) == gives_up


def test_under_pressure_of_memory_only_those_that_would_join_are_asked_after(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are free and the cache is full: to ask all that wait at every step would cost more than the step."""
    monkeypatch.setattr(driver, "ASK_S", 1e9)
    model = load(replace(LLM, filled={**LLM.filled, "max_num_sequences": 16}))
    asked: list[Request] = []

    def is_cancelled(each: Request) -> bool:
        asked.append(each)
        return False

    monkeypatch.setattr(Request, "is_cancelled", is_cancelled)
    answered(model, [request(LLM, {"request_output_len": ids(90)}) for _ in range(40)])
    assert len(asked) == 40, "each once, before it joins"


def test_a_request_is_asked_after_before_it_joins_and_the_next_one_joins_in_its_place(
    load: Callable[[Case], Any], tmp_path: Path
) -> None:
    model = load(LLM)
    gone, here = request(LLM), request(LLM)
    gone.cancelled = True
    finish(model, [gone, here])
    assert "cancelled by its client" in gone.error and not here.error
    model.finalize()
    assert max(step.batch for step in steps_of(tmp_path)) == 1


def test_a_client_of_a_batch_that_has_gone_is_told_and_leaves_it(load: Callable[[Case], Any]) -> None:
    case = replace(CASE["iterative/simple-gpt2"], parameters='{"max_tokens": 40, "ignore_eos": true}')
    model = load(case)
    gone, here = request(case), request(case)
    questions = {gone: 0, here: 0}

    def asking(each: Request, answer: bool) -> Callable[[], bool]:
        def is_cancelled() -> bool:
            questions[each] += 1
            return answer

        return is_cancelled

    gone.is_cancelled, here.is_cancelled = asking(gone, True), asking(here, False)  # type: ignore[method-assign]
    finish(model, [gone, here])
    assert len(gone.responses) < 10 and len(here.responses) == 40
    assert questions[here] <= 4, "not at every token: each question is a message to the server"


def test_nothing_is_left_of_a_batch_whose_decoder_failed(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASE["codegen/codegen-350M-mono-gptj"]
    model = load(case)

    def fail(*_: Any) -> Any:
        raise RuntimeError("at /somewhere/in/openvino.py")

    monkeypatch.setattr(model.rows.engine.decoder, "begin", fail)
    answered(model, [request(case) for _ in range(3)])
    recorder = model.rows.recorder
    recorder.settle()
    assert not recorder._names._live
    assert not recorder._gauges._lives


def test_fault_18_an_idle_server_frees_the_slots_of_clients_that_have_gone(
    load: Callable[[Case], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 18: Triton executes nothing then, and the ends are in the step log all the same."""
    case = replace(ITERATIVE, parameters='{"max_tokens": 9, "ignore_eos": true}')
    model = load(replace(case, filled={**case.filled, "max_batch_size": 1}))
    running, waiting = request(case), request(case)
    model.execute([running, waiting])
    model.execute([_again(running), _again(waiting)])
    assert running.responses and not waiting.responses
    running.cancelled = waiting.cancelled = True
    later = time.monotonic() + 2 * PATIENCE_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    model.running.looking.tick()
    assert not model.running.live
    assert model.running.decoder.cache.used == 0
    model.finalize()
    (log,) = tmp_path.glob("steps-iterative*")
    ended: dict[str, str] = {}
    for line in log.read_text().splitlines():
        ended |= json.loads(line).get("ended", {})
    assert ended == {str(each.correlation_id()): "cancelled" for each in (running, waiting)}


def _again(asked: Request) -> Request:
    asked._flags = asked.flags_out = 0
    return asked


# -- an engine that is dead --------------------------------------------------------------------------------------------

LOST = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported at another call"


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why the server would have ended, each time that it would."""
    ends: list[str] = []
    monkeypatch.setattr(driver, "end_dead_server", ends.append)
    return ends


def failing(*errors: Exception) -> Callable[[Any], Any]:
    """A step that fails with one error after the other."""
    left = [*errors]

    def step(_: Any) -> Any:
        raise left.pop(0)

    return step


def test_a_lost_device_ends_the_server_when_its_requests_are_answered(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    model, told = load(LLM), RuntimeError("the core failed")
    told.__cause__ = RuntimeError(LOST)
    monkeypatch.setattr(model.driver.scheduler, "step", failing(told))
    assert "the step failed" in answered(model, [request(LLM)])[0].error
    model.finalize()
    assert ends == [LOST.splitlines()[0]]


def test_memory_that_is_short_once_does_not(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    model = load(LLM)
    short = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    step = model.driver.scheduler.step
    for _ in range(2):  # what succeeds between them begins the count anew
        monkeypatch.setattr(model.driver.scheduler, "step", failing(*[short] * (driver.FAILED_STEPS - 1)))
        for _ in range(driver.FAILED_STEPS - 1):
            assert answered(model, [request(LLM)])[0].error
        monkeypatch.setattr(model.driver.scheduler, "step", step)
        assert not answered(model, [request(LLM)])[0].error
    model.finalize()
    assert ends == []


@pytest.mark.parametrize("forgiving", [False, True], ids=["shipped", "own-scheduler"])
def test_steps_that_fail_one_after_the_other_end_it_but_for_a_learners_own_mistakes(
    forgiving: bool, load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    model = load(LLM)
    model.driver._forgiving = forgiving
    monkeypatch.setattr(model.driver.scheduler, "step", failing(*[ValueError("?")] * driver.FAILED_STEPS))
    for _ in range(driver.FAILED_STEPS):
        assert answered(model, [request(LLM)])[0].error
    model.finalize()
    assert len(ends) == (0 if forgiving else 1)


def test_a_scheduler_that_fails_outside_its_steps_ends_the_server(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    model = load(LLM)
    monkeypatch.setattr(model.driver.scheduler, "step", failing(ValueError("?")))
    monkeypatch.setattr(model.driver.scheduler, "abandon", failing(RuntimeError("the core is gone")))
    assert answered(model, [request(LLM)])[0].error
    model.driver.thread.join(60)
    assert ends == ["RuntimeError: the core is gone"]
    monkeypatch.setattr(model.driver.scheduler, "abandon", lambda error: [])
    model.finalize()


def test_a_step_that_does_not_return_ends_it(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    monkeypatch.setenv(watched_log.BOUND, "0")
    monkeypatch.setattr(watched_log, "HUNG_S", 0.0)
    model, begun, may_end = load(LLM), threading.Event(), threading.Event()

    def endless(_: Any) -> Any:
        begun.set()
        may_end.wait(60)
        raise RuntimeError("it was endless")

    monkeypatch.setattr(model.driver.scheduler, "step", endless)
    model.execute([request(LLM)])
    assert begun.wait(60)
    for _ in range(2):  # a look that finds it, and one that finds it still there
        model.driver.recorder.log._watchdog.looking.tick()
    may_end.set()
    model.finalize()
    assert "does not return" in ends[0]
