"""The sick server: its faults are found in recorded runs, evidence must show them, and detectors are judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import lab_error

from benchmarks import mystery as bench
from labctl.cli.mystery import mystery_command
from labctl.mystery import case, detector
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.predict import clinic
from labkit.predict.clinic import HEALTHY, Fault, Line

RUNS = 3
FAULTS = case.find_faults(Workspace(ROOT, ROOT / "unused"))
SICK = [fault for name, fault in FAULTS.items() if name != HEALTHY]
GHOSTS = """
def sick(steps):
    gone = set()
    for step in steps:
        if gone & set(step["ids"]):
            return True
        gone |= {name for name, why in step["ended"].items() if why == "cancelled"}
    return False
"""


@pytest.fixture(scope="module")
def healthy() -> dict[int, list[list[Line]]]:
    """Healthy runs by the number of replicas."""
    well = FAULTS[HEALTHY]
    return {
        count: [clinic.record_fault(replace(well, replicas=count), f"healthy {n}") for n in range(RUNS)]
        for count in (1, 2)
    }


def test_each_fault_has_a_summary_that_fits_the_list() -> None:
    assert all(fault.summary and len(fault.summary) <= 58 for fault in SICK)


@pytest.mark.night
@pytest.mark.parametrize("fault", SICK, ids=lambda fault: fault.name)
def test_a_reference_detector_finds_its_fault_alone_and_nothing_in_healthy_runs(
    fault: Fault, healthy: dict[int, list[list[Line]]]
) -> None:
    found = bench.judge(fault, healthy[fault.replicas], SICK)
    assert (found["found"], found["false"]) == (RUNS, 0)
    assert not [name for name, count in found["also"].items() if count == RUNS]
    assert {name: counts[1] for name, counts in found["counters"].items()} == dict.fromkeys(found["counters"], 0)


def test_a_recorded_run_is_that_of_its_seed() -> None:
    fault = FAULTS["evicts_the_oldest"]
    assert clinic.record_fault(fault, "1") == clinic.record_fault(fault, "1") != clinic.record_fault(fault, "2")


def test_every_request_of_a_run_ends_or_leaves() -> None:
    steps = clinic.record_fault(FAULTS[HEALTHY], "1")
    asked = {request.name: request for phase in clinic.make_phases("1") for request in phase.requests}
    ended = {name: why for step in steps for name, why in step["ended"].items()}
    assert ended.keys() == asked.keys()
    left = {name for name, why in ended.items() if why == "cancelled"}
    assert left and left <= {name for name, request in asked.items() if request.cancelled}


def test_a_code_stands_for_one_fault_and_a_new_file_changes_few_codes() -> None:
    for name in FAULTS:
        if name != HEALTHY:
            assert case.fault_of(case.draw_code(FAULTS, name), FAULTS).name == name
    one_less = {name: fault for name, fault in FAULTS.items() if name != "ghosts"}
    codes = [case.draw_code(FAULTS) for _ in range(200)]
    changed = [code for code in codes if case.fault_of(code, FAULTS).name != case.fault_of(code, one_less).name]
    assert all(case.fault_of(code, FAULTS).name == "ghosts" for code in changed)


def test_a_random_code_needs_no_more_replicas_than_there_are() -> None:
    drawn = {case.fault_of(case.draw_code(FAULTS), FAULTS).name for _ in range(300)}
    assert "slow_replica" not in drawn and len(drawn) > len(SICK) / 2


def test_a_sealed_scheduler_has_the_fault_and_does_not_name_it(tmp_path: Path) -> None:
    from labsched.own import class_beside
    from labsched.scheduler import Scheduler

    for fault in SICK:
        text = case.sealed_scheduler(fault)
        assert fault.name not in text and "def " not in text
        folder = tmp_path / fault.name
        folder.mkdir()
        (folder / "scheduler.py").write_text(text)
        assert vars(class_beside(folder, Scheduler)).keys() == vars(fault.kind).keys()


class Answered(case.Case):
    """A case whose steps are recorded ones."""

    def steps(self) -> list[Line]:
        return clinic.record_fault(self.fault, "1")


def answered(name: str) -> Answered:
    anything: Any = None
    return Answered(anything, anything, FAULTS, case.draw_code(FAULTS, name), 0)


def held(judgements: Sequence[case.Judgement]) -> list[bool]:
    return [judgement.holds for judgement in judgements]


def test_evidence_holds_only_if_the_step_shows_the_named_fault() -> None:
    sick = answered("leaking_slot")
    shown = {step["n"] for step in sick.fault.shows(sick.steps())}
    good, bad = min(shown), next(step["n"] for step in sick.steps() if step["n"] not in shown)
    steps = [case.Evidence("step", str(number)) for number in (good, bad, 999999)]
    pieces = [*steps, case.Evidence("counter", "labs_slots")]
    assert held(sick.judge("leaking_slot", pieces)) == [True, True, False, False, False]
    assert held(sick.judge("ghosts", steps[:1])) == [False, False]
    with lab_error("mystery-unknown", "nonsense"):
        sick.judge("nonsense", pieces)


@pytest.mark.night
def test_a_detector_is_scored_by_what_it_finds_and_what_it_calls_sick_wrongly(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GHOSTS)
    chosen = [FAULTS["ghosts"], FAULTS["stalls"]]
    scores = detector.judge_detector(file, FAULTS[HEALTHY], chosen, 2, "seed")
    assert [(score.found, score.false) for score in scores] == [(2, 0), (0, 0)]
    file.write_text("def sick(steps):\n    return True\n")
    assert [score.false for score in detector.judge_detector(file, FAULTS[HEALTHY], chosen[:1], 2, "seed")] == [2]


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("def sick(steps):\n    return 1\n", "detector-answer-invalid", "returned 1"),
        ("def sick(steps):\n    return steps[0]['nothing']\n", "answer-failed", "mine.py, line 2: KeyError"),
        ("def ill(steps):\n    return True\n", "answer-failed", "has no attribute 'sick'"),
    ],
)
def test_a_detector_that_fails_is_told_in_words(tmp_path: Path, text: str, code: str, why: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with lab_error(code, why):
        detector.judge_detector(file, FAULTS[HEALTHY], [FAULTS["ghosts"]], 1, "seed")


def test_record_prints_the_steps_that_a_detector_gets() -> None:
    done = CliRunner().invoke(mystery_command, ["record", "ghosts", "--seed", "1"])
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert lines == json.loads(json.dumps(clinic.record_fault(FAULTS["ghosts"], "1")))


def test_an_answer_without_evidence_is_wrong_usage() -> None:
    for arguments in (["ghosts"], ["ghosts", "--evidence", "step"], ["ghosts", "--evidence", "colour=red"]):
        done = CliRunner().invoke(mystery_command, ["answer", *arguments])
        assert done.exit_code == 2 and "--evidence step=N" in done.output


def test_the_code_is_kept_while_the_sick_server_cannot_be_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bool:
        raise LabError("another command holds it", code="stack-busy")

    workspace = Workspace(tmp_path, tmp_path / "cache")
    purpose = workspace.folder(case.NAME).purpose_file
    atomic_write(purpose, json.dumps({"code": "HEALTHY", "rounds": 1}))
    session: Any = SimpleNamespace(workspace=workspace)
    monkeypatch.setattr(case, "current_case", lambda _: answered("ghosts"))
    monkeypatch.setattr(case, "down", refuse)
    with lab_error("stack-busy"):
        case.stop_case(session)
    assert purpose.exists()


def test_what_start_says_to_type_is_a_command_of_labctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.cli.options.open_session", lambda *_, **__: None)
    monkeypatch.setattr(case, "start_case", lambda *_: answered("ghosts"))
    monkeypatch.setattr("labctl.cli.mystery._load", lambda _: None)
    shown = CliRunner().invoke(mystery_command, ["start", "--code", "ABCDEF"]).output
    assert f"labctl explain {case.STACK} REQUEST" in shown
