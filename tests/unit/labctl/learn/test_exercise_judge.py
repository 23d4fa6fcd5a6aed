"""How an answer is judged without a server: a learner's function on its own, waiting, and what is said of an error."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exercise_cases import EXERCISES, begin_in
from lab_errors import lab_error
from machinery import committed

from labctl.learn import desk, faults, judge, server
from labctl.learn.attempts import exercise_attempts
from labctl.learn.exercise import find_exercise
from labctl.learn.judge import Outcome
from labctl.learn.outcome import Check, Stuck, TooBusy
from labctl.learn.progress import Progress
from labctl.learn.trial import Trial
from labctl.listener import Silent as Listener
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Endpoints, Record
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.workspace import Workspace
from labkit.errors import LabError

NOWHERE = Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
RECORD = Record("exercise", "02", "compose", "cpu", {}, ["m"], NOWHERE)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """That of a checkout in which exercises can be begun."""
    return Workspace(begin_in(tmp_path, monkeypatch), tmp_path / "cache")


def up(session: Session, record: Record) -> RunningStack:
    somewhere: Any = SimpleNamespace(name="compose")
    return RunningStack.of(session, None, somewhere, record)


def test_a_stack_is_cut_to_the_learners_own_lines(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = find_exercise(EXERCISES, "02a")
    said = (
        "Failed to process the request(s) for model 'm_0_0', message: KeyError: 'b'\n\nAt:\n"
        "  /lib/labserve/triton.py(76): respond\n  exercises/02a/model.py(40): one_step\n"
    )
    monkeypatch.setattr(faults, "stack_explainer", lambda *_: str)
    session: Any = SimpleNamespace(workspace=workspace)
    text = faults.in_learners_files(said, session, exercise, up(session, RECORD))
    assert text == "KeyError: 'b'\nAt:\n  exercises/02a/model.py(40): one_step"


PLACE = ".labs/exercise/overlay/iterative-gpt2/1/learner.py"
NAME_ERROR = "Internal: NameError: name 'nonsense' is not defined At: {}(18): initialize"


@pytest.mark.parametrize(
    ("id", "said", "told"),
    [
        ("04a", "codegen-350M-mono-gptj/config.pbtxt:7: no field 'x'", "exercises/04a/config.pbtxt:7: no field 'x'"),
        ("02a", NAME_ERROR.format(PLACE), NAME_ERROR.format("exercises/02a/model.py")),
        ("02a", NAME_ERROR.format(f"ROOT/{PLACE}"), NAME_ERROR.format("exercises/02a/model.py")),
    ],
)
def test_fault_25_what_cannot_be_read_or_loaded_at_the_start_is_told_in_the_learners_file(
    workspace: Workspace, id: str, said: str, told: str
) -> None:
    """No server is up yet that could say where its copies come from."""
    said = said.replace("ROOT", str(workspace.root))
    assert faults.in_learners_files(said, Session.open(Listener()), find_exercise(EXERCISES, id), None) == told


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The servers that the judge has asked for; none is real."""
    served: list[Record] = []

    def serve(session: Session, *_: Any) -> RunningStack:
        served.append(RECORD)
        return up(session, RECORD)

    monkeypatch.setattr(server, "serve_exercise", serve)
    monkeypatch.setattr(server, "stop_exercise_server", lambda _: True)
    monkeypatch.setattr(faults, "stack_explainer", lambda *_: str)
    return served


@pytest.fixture
def judged(workspace: Workspace, servers: list[Record], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """What the judge says of an exercise when its check is another function; ``noted`` are faults of the model."""
    session: Any = SimpleNamespace(workspace=workspace, listener=Listener())
    monkeypatch.setattr(RunningStack, "find", lambda session, stack: up(session, RECORD))

    def judged(
        check: Callable[[Trial], None],
        noted: Sequence[dict[str, Any]] = (),
        id: str = "02b",
        seeds: Sequence[int] = (7,),
    ) -> Outcome:
        def function(trial: Trial) -> None:
            trial.run_dir.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps({"t": time.monotonic(), "exception": True, **fault}) for fault in noted]
            (trial.run_dir / "faults-m-0.jsonl").write_text("".join(f"{line}\n" for line in lines))
            check(trial)

        exercise = find_exercise(EXERCISES, id)
        desk.lay_out_exercise(exercise, workspace)
        monkeypatch.setattr(judge, "_load", lambda _: function)
        return judge.check_exercise(session, exercise, "compose", seeds)

    return judged


@pytest.mark.parametrize("loops", [False, True])
def test_fault_25_a_loop_without_an_end_is_named_where_an_answer_is_missing(judged: Any, loops: bool) -> None:
    def check(trial: Trial) -> None:
        if loops:
            note = {"model": "m", "since": time.time() - 8, "steps": 0, "file": "exercises/02a/model.py", "line": 27}
            (trial.run_dir / "stuck-m-0.json").write_text(json.dumps(note))
        raise Stuck("m has not answered within 10 s", code="model-silent")

    said = judged(check, id="02a").sentence
    assert ("it is at exercises/02a/model.py:27: is there a loop without an end?" in said) == loops
    assert ("RESCHEDULE" in said) != loops


def test_a_model_that_triton_takes_for_dead_is_tried_once_more(judged: Any) -> None:
    """On a machine so busy that a model's process does not say in time that it lives."""
    tries = []

    def check(trial: Trial) -> None:
        tries.append(trial.seed)
        if len(tries) != 2:
            raise LabError("m answered with an error", "Stub process 'm_0_0' is not healthy.", code="model-error")
        holds(trial)

    assert judged(check, id="03b").passed
    assert "is not healthy" in judged(check, id="03b").sentence
    assert tries == [7] * 4


@pytest.mark.parametrize(
    ("code", "theirs"),
    [
        ("model-load-slow", False),
        ("not-ready-in-time", False),
        ("server-aborted", False),
        ("model-load-failed", True),
        ("server-died", True),
    ],
)
@pytest.mark.parametrize("served", [False, True], ids=["at the start", "in the trial"])
def test_a_machine_that_is_too_busy_is_no_attempt(
    judged: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, code: str, theirs: bool, served: bool
) -> None:
    def goes_wrong(*_: Any) -> RunningStack:
        raise LabError("m did not come", code=code)

    if not served:
        monkeypatch.setattr(server, "serve_exercise", goes_wrong)
    if theirs:
        assert not judged(goes_wrong).passed
    else:
        with lab_error("machine-busy", kind=TooBusy):
            judged(goes_wrong)
    assert Progress(workspace).of("02b").checks == theirs


@pytest.mark.parametrize(("id", "served", "drawn"), [("07c", 3, 1), ("07b", 1, 2)])
def test_an_exercise_that_breaks_its_server_is_given_one_for_each_trial(
    judged: Any, servers: list[Record], id: str, served: int, drawn: int
) -> None:
    assert judged(holds, id=id, seeds=[7, 8, 9]).passed
    assert len(servers) == served
    assert len(judged(holds, id=id, seeds=()).seeds) == drawn


RAISED = {"words": "KeyError: 4", "line": 31}


def fails(trial: Trial) -> None:
    trial.expect("answers", "8", 3, False, "a request found no free slot.")


def holds(trial: Trial) -> None:
    trial.expect("answers", "8", 8, True, "")


def breaks(trial: Trial) -> None:
    raise LabError("the server answered a request with an error", "the model raised KeyError", code="request-refused")


@pytest.mark.parametrize("check", [fails, holds, breaks])
def test_fault_25_an_exception_of_the_learners_is_the_headline_wherever_it_is_raised(judged: Any, check: Any) -> None:
    """Also after the last answer, when every expectation holds."""
    outcome = judged(check, [RAISED])
    assert not outcome.passed
    assert outcome.sentence == "exercises/02b/model.py, line 31: KeyError: 4"


def test_a_check_that_knows_the_exception_explains_it_and_shows_it(judged: Any) -> None:
    def check(trial: Trial) -> None:
        with trial.explain_errors("a slot is never given back.", because="slots of the KV cache are taken"):
            breaks(trial)

    known = judged(check, [{"words": "RuntimeError: all 8 slots of the KV cache are taken", "line": 40}])
    assert known.sentence == "a slot is never given back."
    assert "exercises/02b/model.py, line 40: RuntimeError: all 8 slots" in known.checks[0].measured
    assert judged(check, [RAISED]).sentence == "exercises/02b/model.py, line 31: KeyError: 4"


def test_a_broken_rule_is_told_where_nothing_was_raised(judged: Any) -> None:
    rule = {"words": "a request was given back", "line": None, "exception": False}
    assert judged(fails, [rule]).sentence == "a request was given back."
    assert judged(fails, [rule, RAISED]).sentence == "exercises/02b/model.py, line 31: KeyError: 4"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import importlib.util\nF = '/w/labs/02-x/exercises/02b-y/solution/model.py'\n", 2),
        ("from pathlib import Path\n\nF = Path('labs') / 'solution' / 'model.py'\n", 3),
        ("from solution.model import TritonPythonModel\n", 1),
        ('"""No solution/ yet."""\n\nNOTE = "the solution is near"  # labs/02/solution\n', None),
    ],
)
def test_the_official_solution_in_a_learners_file_is_named_and_does_not_pass(
    judged: Any, workspace: Workspace, source: str, line: int | None
) -> None:
    (desk.lay_out_exercise(find_exercise(EXERCISES, "02b"), workspace) / "model.py").write_text(source)
    outcome = judged(holds)
    assert outcome.passed == (line is None)
    named_so = f"exercises/02b/model.py, line {line}, uses the official solution: write your own."
    assert (outcome.sentence == named_so) == (line is not None)


def test_no_starter_solution_or_wrong_answer_is_taken_for_one_that_uses_the_solution(tmp_path: Path) -> None:
    for exercise in EXERCISES:
        for answer in exercise_attempts(exercise):
            answer.write(tmp_path)
            assert judge.of_the_solution(exercise, {name: tmp_path / name for name in answer.files}) == []


PLACE_02B = "labs/02-iterative-scheduling/exercises/02b-free-the-slot"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["check.py"], f"judged by files that are not as shipped ({PLACE_02B}/check.py)"),
        (["task.md"], ""),
        (["check.py", "exercise.yaml", "task.md"], ""),
    ],
)
def test_a_pass_by_a_replaced_check_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: list[str], told: str
) -> None:
    """An exercise of which nothing is as shipped is a person's own."""
    shipped = find_exercise(EXERCISES, "02b")
    shutil.copytree(shipped.folder, tmp_path / PLACE_02B)
    committed(tmp_path)
    workspace = Workspace(tmp_path, tmp_path / "cache")
    exercise = replace(shipped, folder=tmp_path / PLACE_02B)
    desk.lay_out_exercise(exercise, workspace)
    for name in changed:
        (tmp_path / PLACE_02B / name).write_text("# replaced\n")
    monkeypatch.setattr(judge, "_judge", lambda *_: [Check("answers", "8", "8", True)])
    session: Any = SimpleNamespace(workspace=workspace, listener=Listener())
    outcome = judge.check_exercise(session, exercise, "compose", [7])
    assert outcome.passed
    assert outcome.sentence.partition("; ")[2] == told


def test_a_judge_that_another_exercise_holds_is_looked_at_too(tmp_path: Path) -> None:
    """02e reads the properties of 02d."""
    shipped = find_exercise(EXERCISES, "02e")
    place = tmp_path / PLACE_02B.rpartition("/")[0]
    shutil.copytree(shipped.folder.parent, place)
    committed(tmp_path)
    workspace = Workspace(tmp_path, tmp_path / "cache")
    exercise = replace(shipped, folder=place / shipped.folder.name)
    assert judge.edited_judges(exercise, workspace) == []
    properties = place / "02d-a-block-table" / "properties.py"
    properties.write_text("# replaced\n")
    assert judge.edited_judges(exercise, workspace) == [properties.relative_to(tmp_path).as_posix()]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("scheduler.py, line 27: TypeError: 'int' object is not iterable", "scheduler.py, line 27: TypeError: 'int'"),
        (
            "Internal: NameError: name 'x' is not defined At: my/scheduler.py(18): initialize",
            "scheduler.py, line 18: NameError: name 'x' is not defined",
        ),
        (
            "KeyError: 'b'\nAt:\n  my/scheduler.py(40): one\n  my/scheduler.py(28): two",
            "scheduler.py, line 40: KeyError: 'b'",
        ),
        ("Socket closed", ""),
    ],
)
def test_what_triton_says_of_a_learners_line_begins_with_the_file_and_the_line(said: str, told: str) -> None:
    found = faults.locate_line(said, find_exercise(EXERCISES, "06b"))
    assert found.startswith(f"my/{told}") if told else found == ""


@pytest.mark.parametrize("value", [7, None, "text", ["a", 5], {"a": 1}, "x" * 5000, [[1]] * 3])
def test_a_value_that_a_check_cannot_read_is_a_sentence_and_no_traceback(judged: Any, value: Any) -> None:
    """Whatever a learner's file gives: the judge says what it was."""

    def check(trial: Trial) -> None:
        trial.given = "predict", value
        first, second = value["steps"], sum(value)
        trial.expect("steps", "1", first, first == second, "")

    outcome = judged(check)
    assert not outcome.passed
    assert outcome.sentence.startswith(f"predict gave {value!r}"[:150])
    assert "Traceback" not in outcome.sentence and len(outcome.sentence) < 400


def test_a_check_that_fails_by_itself_says_so(judged: Any) -> None:
    def check(trial: Trial) -> None:
        raise KeyError("prefill")

    assert re.search(r"KeyError: 'prefill', line \d+\): this is a fault of the exercise", judged(check).sentence)


@pytest.mark.parametrize("held", ["exercises", "exercise"])
@pytest.mark.parametrize("id", ["01a", "02a"])
def test_fault_32_a_check_beside_another_command_names_it_and_judges_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, held: str, id: str
) -> None:
    """Two learners' checks in one checkout, and a check while ``up`` of the exercise server is in progress."""
    exercise = find_exercise(EXERCISES, id)
    desk.lay_out_exercise(exercise, workspace)
    session = Session.open(Listener())

    def up(session: Session, lab: Any, stack: str, options: Any) -> Any:
        with stack_lock(workspace, stack, "up"):
            raise AssertionError("it came up beside the other")

    monkeypatch.setattr(server, "up", up)
    action = "exercise check" if held == "exercises" else "up"
    with stack_lock(workspace, held, action), lab_error("stack-busy", action, held, os.getpid()):
        judge.check_exercise(session, exercise, "local", [1])
    assert judge.last_outcome(workspace, id) is None and Progress(workspace).entries() == {}
