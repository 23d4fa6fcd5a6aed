"""Readiness: ends at once on what waiting cannot mend, and believes nothing but a real answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fake_triton import FakeTriton, serve
from lab_errors import lab_error

from labctl.lab import Probe
from labctl.triton import readiness
from labkit.errors import LabError


@pytest.fixture
def fake() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def endpoint(fake: FakeTriton) -> Iterator[str]:
    with serve(fake) as where:
        yield where


class Clock:
    """A clock that only pauses move: a timeout test takes no time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses = 0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1


def model(name: str, state: str, reason: str = "") -> dict[str, str]:
    return {"name": name, "version": "1", "state": state, "reason": reason}


def wait(endpoint: str, *models: str, **more: Any) -> Any:
    clock = Clock()
    known = {name: more.pop(name) for name in ("exited", "tail", "log", "stuck") if name in more}
    server = readiness.ServerOutside(**{"exited": lambda: None, "tail": lambda: ["last words"], **known})
    options: dict[str, Any] = {"timeout": 30.0, "progress": lambda text: None, "clock": clock, "pause": clock.pause}
    return readiness.wait_ready(endpoint, models, more.pop("probes", {}), server, **{**options, **more})


def test_ready_when_every_expected_model_is(fake: FakeTriton, endpoint: str) -> None:
    fake.index = [model("a", "READY"), model("b", "READY")]
    assert {state.name for state in wait(endpoint, "a", "b")} == {"a", "b"}


def test_a_model_that_loads_slowly_is_waited_for_and_told_of(fake: FakeTriton, endpoint: str) -> None:
    fake.index = [model("a", "LOADING")]
    seen: list[str] = []

    def later() -> None:
        if len(seen) >= 3:
            fake.index = [model("a", "READY")]

    fake.on_index = later  # type: ignore[method-assign]
    wait(endpoint, "a", progress=seen.append)
    assert "a loading" in seen
    assert "a ready" in seen


def test_an_unavailable_model_fails_at_once_with_tritons_reason(fake: FakeTriton, endpoint: str) -> None:
    fake.index = [model("a", "READY"), model("b", "UNAVAILABLE", "Internal: no such file\n\nAt:\n  x.py(3): f")]
    clock = Clock()
    with lab_error("model-load-failed", " b") as caught:
        wait(endpoint, "a", "b", clock=clock, pause=clock.pause)
    assert caught.value.why == "Internal: no such file"
    assert clock.pauses == 0


def test_an_ensembles_failure_is_told_with_the_step_that_caused_it(fake: FakeTriton, endpoint: str) -> None:
    fake.index = [
        model("e", "UNAVAILABLE", "ensemble 'e' depends on 's' which has no loaded version"),
        model("s", "UNAVAILABLE", "Internal: bad weights"),
    ]
    with lab_error("model-load-failed") as caught:
        wait(endpoint, "e", "s")
    assert caught.value.why == "Internal: bad weights"


def test_a_dead_server_ends_the_wait_with_how_and_the_last_log_lines(endpoint: str) -> None:
    with lab_error("server-died", "SIGKILL", "last words"):
        wait(endpoint, "a", exited=lambda: "killed by SIGKILL")


def test_an_abort_of_a_busy_machine_is_known_by_tritons_last_words(endpoint: str) -> None:
    words = "terminate called after throwing an instance of 'boost::interprocess::lock_exception'"
    with lab_error("server-aborted") as caught:
        wait(endpoint, "a", exited=lambda: "killed by SIGABRT", log=lambda: ["I1128 begin", words])
    assert caught.value.remedy


ABORTED = LabError("the server ended before it was ready", code="server-aborted")
UNHEALTHY = LabError("m cannot be loaded", "Stub process 'm_0_0' is not healthy.", code="model-load-failed")
WRONG = LabError("m cannot be loaded", "KeyError: 'b'", code="model-load-failed")


@pytest.mark.parametrize(
    ("fails", "begun", "code"),
    [
        ([], 1, ""),
        ([ABORTED], 2, ""),
        ([UNHEALTHY], 2, ""),
        ([ABORTED, ABORTED], 2, "server-aborted"),
        ([WRONG], 1, "model-load-failed"),
    ],
)
def test_a_start_is_made_once_more_where_it_failed_as_on_a_busy_machine(
    fails: list[LabError], begun: int, code: str
) -> None:
    ways, noted, starts = iter(fails), [""], []

    def start() -> str:
        starts.append(1)
        if error := next(ways, None):
            raise error
        return "up"

    if code:
        with lab_error(code):
            readiness.start_once_more(start, noted.append)
    else:
        assert readiness.start_once_more(start, noted.append) == "up"
    assert len(starts) == len(noted) == begun


@pytest.mark.parametrize(("spent", "left"), [(0.0, 31), (20.0001, 11)])
def test_a_timeout_names_the_models_that_are_missing_and_the_time_that_was_asked_for(
    fake: FakeTriton, endpoint: str, spent: float, left: float
) -> None:
    fake.index = [model("a", "READY"), model("slow", "LOADING")]
    clock = Clock()
    with lab_error("not-ready-in-time", "30 s", "slow"):
        wait(endpoint, "a", "slow", spent=spent, clock=clock, pause=clock.pause)
    assert clock() < left


def test_a_server_that_never_answers_is_a_timeout_and_not_an_endless_poll() -> None:
    with lab_error("not-ready-in-time", "30 s") as caught:
        wait("127.0.0.1:1", "a")
    assert "does not answer" in caught.value.why


@pytest.mark.parametrize(
    ("path", "status", "answer"),
    [
        ("infer", 500, '{"error": "Stub process is unhealthy"}'),
        ("generate_stream", 200, 'data: {"error": "Stub process is unhealthy"}'),
    ],
)
def test_a_ready_model_that_answers_with_an_error_is_not_ready_whatever_the_status(
    fake: FakeTriton, endpoint: str, path: Any, status: int, answer: str
) -> None:
    fake.index = [model("a", "READY")]
    fake.answers[f"/v2/models/a/{path}"] = (status, answer)
    with lab_error("model-error") as caught:
        wait(endpoint, "a", probes={"a": Probe(path=path, body={})})
    assert caught.value.why == "Stub process is unhealthy"


def test_before_triton_answers_its_log_tells_how_far_each_model_is() -> None:
    log = ['I1 model_lifecycle.cc] "loading: b:1"', "I1 model_lifecycle.cc] \"successfully loaded 'a'\""]
    told: list[str] = []
    with lab_error("not-ready-in-time", "3 s: b\n"):
        wait("127.0.0.1:9", "a", "b", log=lambda: log, progress=told.append, timeout=3.0)
    assert "a ready, b loading" in told


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Poll failed for model directory 'b': ", "model input 'x' must specify 'data_type' for b"),
        ("failed to load model 'b': ", "at least one version must be available under the version policy of model 'b'"),
    ],
)
def test_a_configuration_that_triton_refuses_fails_at_once_in_the_words_of_its_log(
    fake: FakeTriton, endpoint: str, line: str, reason: str
) -> None:
    fake.index = [model("a", "READY"), model("b", "")]
    log = [f'E1 manager] "{line}{reason}"']
    with lab_error("model-load-failed", " b") as caught:
        wait(endpoint, "a", "b", log=lambda: log)
    assert caught.value.why == reason


def test_any_error_to_the_tiny_question_is_told_and_a_dead_stub_is_named_where_an_ensemble_meets_it(
    fake: FakeTriton, endpoint: str
) -> None:
    words = "in ensemble 'e', Stub process 'step_one_0_0' is not healthy."
    fake.answers["/v2/models/e/infer"] = (500, '{"error": "' + words + '"}')
    fake.answers["/v2/models/full/infer"] = (400, '{"error": "all slots are taken"}')
    probes = {"e": Probe(body={}), "full": Probe(body={})}
    assert readiness.failing_models(endpoint, probes) == {"step_one": words, "full": "all slots are taken"}
    assert readiness.failing_models("127.0.0.1:9", probes) == {}  # no answer (yet) is no error


def failed(reason: str) -> list[str]:
    """Triton's log while it answers nobody yet."""
    return ["E1122 04:27:10.985854 2026 lifecycle.cc:642] " + json.dumps(f"failed to load 'b' version 1: {reason}")]


def test_a_model_that_fails_while_another_still_loads_ends_the_wait_with_its_file_and_line() -> None:
    log = failed("Internal: KeyError: 'x'\n\nAt:\n  /r/b/1/model.py(3): initialize")
    with lab_error("model-load-failed", " b") as caught:
        wait("127.0.0.1:9", "a", "b", log=lambda: log)
    assert caught.value.why == "Internal: KeyError: 'x' At: /r/b/1/model.py(3): initialize"


def test_a_syntax_error_names_the_model_whose_file_it_is_in() -> None:
    log = failed("Internal: SyntaxError: no (model.py, line 7)")
    with lab_error("model-load-failed") as caught:
        wait("127.0.0.1:9", "a", "b", log=lambda: log)
    assert caught.value.why == "Internal: SyntaxError: no (b/1/model.py, line 7)"


def test_the_cause_and_the_line_of_a_refused_text_are_told_out_of_the_log() -> None:
    head = "[libprotobuf ERROR /tmp/text_format.cc:337] Error parsing text-format inference.ModelConfig: "
    refused = (
        "E1127 1 manager.cc:1460] \"Poll failed for model directory '{}': "
        'failed to read text proto from /r/{}/config.pbtxt"'
    )
    log = [
        f"{head}2:16: Interpreting non ascii codepoint 194.",
        f"{head}2:16: Expected integer, got: \ufffd",
        refused.format("a", "a"),
        refused.format("b", "b"),  # without a line of its own
        'E0000 00:00 text_format.cc:368] Error parsing text-format inference.ModelConfig: 7:3: no field named "x".',
        refused.format("c", "c"),
    ]
    told = dict(readiness.each_refusal(log))
    assert told["a"].endswith("config.pbtxt: line 2, column 16: Interpreting non ascii codepoint 194.")
    assert told["b"].endswith("config.pbtxt")
    assert told["c"].endswith('line 7, column 3: no field named "x".')
