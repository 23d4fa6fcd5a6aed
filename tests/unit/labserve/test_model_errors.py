"""Every model of ours, as it is: an error names the input, stays with its request, and says nothing of our code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_backend import LOG
from model_cases import ALL, ENGINE, STREAMS, Case, answered, ids, request, says_nothing_of_the_code
from waiting import DEADLINE_S


@ALL
def test_fault_38_a_required_input_that_is_replaced_by_another_is_named_with_what_is_expected(
    case: Case, load: Callable[[Case], Any]
) -> None:
    model = load(case)
    name = next(iter(case.good))
    (response,) = answered(model, [request(case, {name: None, case.swapped: np.array([[1]])})])
    assert response.error.startswith(f"{name}: it is missing; expected "), response.error
    says_nothing_of_the_code(response.error)


@ALL
def test_fault_38_one_bad_request_is_told_by_name_and_its_neighbours_are_answered(
    case: Case, load: Callable[[Case], Any]
) -> None:
    model = load(case)
    name, value, words = case.bad
    if not words:
        name, value, words = next(iter(case.good)), None, "it is missing"
    good, bad = [request(case) for _ in range(3)], request(case, {name: value})
    responses = answered(model, [good[0], bad, *good[1:]])
    assert [bool(response.error) for response in responses] == [False, True, False, False]
    assert responses[1].error.startswith(f"{name}: ")
    assert words in responses[1].error
    says_nothing_of_the_code(responses[1].error)


@ALL
def test_what_was_not_foreseen_is_an_internal_error_and_its_story_is_in_the_log(
    case: Case, load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(case)
    where, method = case.breaks
    broken = model
    for part in where.split(".") if where else []:
        broken = getattr(broken, part)

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("/opt/secret/model.py")

    monkeypatch.setattr(broken, method, fail)
    LOG.clear()
    (response,) = answered(model, [request(case)])
    assert f"internal error in {Path(case.path).name} (see the server's log, entry 1)" in response.error
    says_nothing_of_the_code(response.error)
    assert "entry 1" in LOG[0]
    assert "Traceback" in LOG[0]


def gone(*_: Any) -> Any:
    raise OSError("the disk is gone: /run/steps")


def refused(model: Any, case: Case, count: int) -> bool:
    """Whether each of so many requests, with a long one, is answered by an internal error."""
    long = {"request_output_len": ids(90)} if case is ENGINE else {}
    responses = answered(model, [request(case, long), *(request(case) for _ in range(count - 1))])
    return all(f"internal error in {Path(case.path).name}" in response.error for response in responses)


BOTH = pytest.mark.parametrize("case", [ENGINE, STREAMS], ids=["tensorrt_llm", "streams"])


@BOTH
def test_fault_26_a_failing_scheduler_thread_tells_everybody_who_waits_and_whoever_comes_later(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """An exception outside the step."""
    model = load(case)
    monkeypatch.setattr(
        *((model.driver.recorder, "record") if case is ENGINE else (model.driver.scheduler, "join")), gone
    )
    assert refused(model, case, 4)
    assert refused(model, case, 1)


@BOTH
def test_fault_26_a_scheduler_thread_that_has_ended_refuses_whoever_comes_later(
    load: Callable[[Case], Any], case: Case
) -> None:
    """It failed outside a step, where nothing can go on."""
    model = load(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.driver, "give_up", gone)
        patch.setattr(model.driver.recorder, "record", gone)
        answered(model, [request(case)])
        model.driver.thread.join(DEADLINE_S)
    assert not model.driver.thread.is_alive()
    assert refused(model, case, 1) and refused(model, case, 1)
