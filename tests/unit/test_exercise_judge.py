"""How an answer is judged without a server: a learner's function on its own, waiting, and what is said of an error."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exercise_cases import EXERCISES, begin_in

from labctl.errors import LabError
from labctl.learn import desk, judge, sandbox, server
from labctl.learn.exercise import named
from labctl.learn.trial import Stuck, Trial
from labctl.listener import Silent as Listener
from labctl.measure.clients.base import InFlight
from labctl.measure.records import RequestRecord
from labctl.orchestrator.session import Session
from labctl.runtimes.base import Endpoints
from labctl.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """That of a checkout in which exercises can be begun."""
    return Workspace(begin_in(tmp_path, monkeypatch), tmp_path / "cache")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(x):\n    return x / 0\n", "answer.py, line 2: ZeroDivisionError"),
        ("def f(x):\n    return bytes(2 << 30)\n", "MemoryError"),
        ("def g(x): pass\n", "has no attribute 'f'"),
        ("def f(x):\n    return {1, 2}\n", "not JSON serializable"),
        ("def f(x:\n", "SyntaxError"),
    ],
)
def test_a_function_that_goes_wrong_is_told_in_its_own_lines(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "answer.py").write_text(source)
    with pytest.raises(LabError) as caught:
        sandbox.call(tmp_path / "answer.py", "f", [1], seconds=20)
    assert said in f"{caught.value}"
    assert "Traceback" not in f"{caught.value}"


def test_a_function_that_does_not_return_is_ended(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("def f(x):\n    while True: pass\n")
    with pytest.raises(LabError, match=r"(?s)has not returned within 0\.5 s.*a loop without an end"):
        sandbox.call(tmp_path / "answer.py", "f", [1], seconds=0.5)


def test_a_function_may_print_and_its_result_comes_back(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("def f(a, b):\n    print('thinking')\n    return [a + b, {'n': b}]\n")
    assert sandbox.call(tmp_path / "answer.py", "f", [1, 2], seconds=5) == [3, {"n": 2}]


class Silent(InFlight):
    """A connection on which nothing comes any more."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")

    def answered(self, error: str = "") -> RequestRecord:
        record = self.send_inputs("m", "a prompt", [])
        with self._changed:
            self._end(record, record.start + 1, error)
        return record

    def _hand_over(self, record: RequestRecord, inputs: list[object], priority: int) -> None:
        pass


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    nowhere = Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
    return Trial(1, nowhere, tmp_path, tmp_path, {}, "", patience=0.05)


def test_a_check_may_wait_for_refusals_but_not_for_ever(trial: Trial) -> None:
    with Silent() as client:
        refused = client.answered("Request timeout expired")
        trial.ended(client, client.answered(), refused)
        with pytest.raises(LabError, match="Request timeout expired"):
            trial.wait(client, refused)
        with pytest.raises(Stuck, match=r"m has not answered within 0\.05 s"):
            trial.ended(client, refused, client.send_inputs("m", "a prompt", []))


def test_a_connection_that_breaks_is_not_taken_for_a_model_that_does_not_answer(trial: Trial) -> None:
    trial.patience = 30.0
    with Silent() as client:
        waiting = client.send_inputs("m", "a prompt", [])
        client._broken = "division by zero"
        with pytest.raises(LabError, match="the connection to the server broke") as caught:
            trial.wait(client, waiting)
        assert not isinstance(caught.value, Stuck)


def test_a_stack_is_cut_to_the_learners_own_lines(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = named(EXERCISES, "02a")
    said = (
        "Failed to process the request(s) for model 'm_0_0', message: KeyError: 'b'\n\nAt:\n"
        "  /lib/labserve/triton.py(76): respond\n  exercises/02a/model.py(40): one_step\n"
    )
    monkeypatch.setattr(judge, "explainer", lambda *_: str)
    monkeypatch.setattr("labctl.learn.server.lab_with", lambda *_: None)
    session: Any = SimpleNamespace(workspace=workspace)
    running: Any = (None, None)
    text = judge._in_learners_files(said, session, exercise, running)
    assert text == "KeyError: 'b'\nAt:\n  exercises/02a/model.py(40): one_step"


def test_a_config_that_cannot_be_read_is_told_in_the_learners_file(workspace: Workspace) -> None:
    said = 'codegen-350M-mono-gptj/config.pbtxt:7: no field named "dynamic_batchng"'
    told = judge._in_learners_files(said, Session.open(Listener()), named(EXERCISES, "04a"), None)
    assert told == 'exercises/04a/config.pbtxt:7: no field named "dynamic_batchng"'


@pytest.mark.parametrize("below", [False, True])
def test_a_model_that_cannot_be_loaded_at_the_start_is_told_in_the_learners_file(
    workspace: Workspace, below: bool
) -> None:
    """No server is up yet that could say where its copies come from."""
    place = ".labs/exercise/overlay/iterative-gpt2/1/model.py"
    copy = place if below else workspace.root / place
    said = f"Internal: NameError: name 'nonsense' is not defined At: {copy}(18): initialize"
    told = judge._in_learners_files(said, Session.open(Listener()), named(EXERCISES, "02a"), None)
    assert told == "Internal: NameError: name 'nonsense' is not defined At: exercises/02a/model.py(18): initialize"


@pytest.mark.parametrize("loops", [False, True])
def test_a_loop_without_an_end_is_named_where_an_answer_is_missing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, loops: bool
) -> None:
    exercise = named(EXERCISES, "02a")
    desk.lay_out(exercise, workspace)

    def check(trial: Trial) -> None:
        trial.run_dir.mkdir(parents=True, exist_ok=True)
        if loops:
            note = {"model": "m", "since": time.time() - 8, "steps": 0, "file": "exercises/02a/model.py", "line": 27}
            (trial.run_dir / "stuck-m-0.json").write_text(json.dumps(note))
        raise Stuck("m has not answered within 10 s")

    nowhere = Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
    record = SimpleNamespace(endpoints=nowhere, settings={}, tokenizer_dir="", server={})
    monkeypatch.setattr(server, "serve", lambda *_: (SimpleNamespace(name="compose"), record))
    monkeypatch.setattr(server, "stop", lambda _: True)
    monkeypatch.setattr(judge, "explainer", lambda *_: str)
    monkeypatch.setattr(judge, "_load", lambda _: check)
    session: Any = SimpleNamespace(workspace=workspace, listener=Listener())
    said = judge.check(session, exercise, "compose", [7]).sentence
    assert ("it is at exercises/02a/model.py:27: is there a loop without an end?" in said) == loops
    assert ("RESCHEDULE" in said) != loops


def test_a_model_that_triton_takes_for_dead_is_tried_once_more(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine so busy that a model's process does not say in time that it lives."""
    exercise, tries = named(EXERCISES, "03b"), []
    desk.lay_out(exercise, workspace)

    def check(trial: Trial) -> None:
        tries.append(trial.seed)
        if len(tries) != 2:
            raise LabError("m answered with an error", "Stub process 'm_0_0' is not healthy.")
        trial.expect("an answer", "1", 1, True, "")

    nowhere = Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
    record = SimpleNamespace(endpoints=nowhere, settings={}, tokenizer_dir="", server={})
    monkeypatch.setattr(server, "serve", lambda *_: (SimpleNamespace(name="compose"), record))
    monkeypatch.setattr(judge, "explainer", lambda *_: str)
    monkeypatch.setattr(judge, "_load", lambda _: check)
    session: Any = SimpleNamespace(workspace=workspace, listener=Listener())
    assert judge.check(session, exercise, "compose", [7]).passed
    outcome = judge.check(session, exercise, "compose", [7])
    assert tries == [7] * 4 and "is not healthy" in outcome.sentence
