"""Exercises 05f, 07d and 08d without a server: what the checks count by."""

from __future__ import annotations

import random
import re
import runpy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import recordings
from checkout import ROOT
from counting_trial import PAGE
from lab_errors import lab_error
from prometheus_here import prometheus, promtool

from labctl.catalog import load_catalog
from labctl.contention import Patience
from labctl.learn import promtool as rule_tests
from labctl.learn import sandbox
from labctl.learn.attempts import exercise_attempts
from labctl.learn.exercise import Exercise, find_exercise, find_exercises
from labctl.learn.outcome import Missing
from labctl.runtimes import docker_engine
from labctl.workspace import Workspace
from labkit.errors import LabError
from labsched.costs import StepCosts
from labsched.replay import admission
from labsched.replay.admission_file import decisions
from labsched.replay.counted_time import Latency, counted_arrivals, good_share, replay_counted, time_steps
from labsched.replay.slo import Slo
from labsched.step import Step

__all__ = ["prometheus", "promtool"]
EXERCISES = find_exercises(Workspace(ROOT, ROOT), load_catalog(Workspace(ROOT, ROOT)))
ALERTS, ADMISSION, KNEE = (find_exercise(EXERCISES, id) for id in ("07d", "08d", "05f"))


class Trial:
    """What the checks use of a trial."""

    Error = LabError

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.failed: list[str] = []

    def page(self) -> str:
        return PAGE

    def parameters(self, model: str) -> dict[str, str]:
        return {}

    def first_firings(self, file: str, *arguments: Any) -> list[float | None]:
        return rule_tests.first_firings(self.folder / file, *arguments)

    def call(self, script: str, function: str, *arguments: Any) -> Any:
        return sandbox.call_in_sandbox(self.folder / script, function, arguments, Patience(60))

    def expect(self, name: str, expected: str, measured: object, ok: bool, sentence: str) -> bool:
        self.failed += [] if ok else [sentence]
        return ok


def check_of(exercise: Exercise) -> Callable[[Trial], None]:
    """The exercise's check; what it would ask a server is counted."""
    check: Any = runpy.run_path(str(exercise.folder / "check.py"))["check"]
    if exercise is ADMISSION:
        check.__globals__["served"] = lambda trial, load, played: played.latencies()
    found: Callable[[Trial], None] = check
    return found


def rules_say(tmp_path: Path, text: str) -> str:
    (tmp_path / "rules.yaml").write_text(text)
    trial = Trial(tmp_path, 1)
    check_of(ALERTS)(trial)
    return trial.failed[0]


def test_a_metric_that_the_server_does_not_have_is_named(tmp_path: Path, promtool: None) -> None:
    rules = "groups: [{name: g, rules: [{alert: A, expr: 'rate(nv_inference_request_sucess[1m]) == 0'}]}]"
    assert rules_say(tmp_path, rules).startswith("your server has no metric nv_inference_request_sucess:")


@pytest.mark.parametrize(
    ("expression", "code", "words"),
    [
        ("rate(up) > 0", "rules-unreadable", "expected type range vector"),
        ("no_such(up)", "rules-unreadable", "unknown function"),
        ("sum(up) / on() group_left() up / on() up", "rules-invalid", "many-to-many|multiple matches"),
    ],
)
def test_rules_that_prometheus_cannot_read_or_evaluate_are_explained_in_its_words(
    tmp_path: Path, promtool: None, expression: str, code: str, words: str
) -> None:
    with lab_error(code) as raised:
        rules_say(tmp_path, f"groups: [{{name: g, rules: [{{alert: A, expr: '{expression}'}}]}}]")
    assert re.search(words, raised.value.why)


def test_without_promtool_the_check_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_engine() -> None:
        raise LabError("no Docker engine answers", code="docker-missing")

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(docker_engine, "engine", no_engine)
    with lab_error("promtool-missing", kind=Missing):
        rules_say(tmp_path, "groups: []")


COST = StepCosts(step=10, decoding=1, token=0.5)  # milliseconds
LENGTHS, TIMES = [(10, 3), (20, 2), (20, 1)], [0.0, 5.0, 5.0]
LOAD = admission.AdmissionLoad(counted_arrivals(LENGTHS, TIMES), COST, Slo(ttft=100, tpot=20))


def test_the_gate_counts_steps_and_time_as_the_engine_does() -> None:
    played = admission.play_load(LOAD, lambda state: "admit" if state["running"] < 2 else "wait")
    assert {number: decision.after for number, decision in played.decisions.items()} == {0: 0, 1: 1, 2: 3}
    # 15: a prompt of 10. 21: a decode and a prompt of 20. 12: two decodes, with which both requests end. 20: a prompt.
    assert {number: decision.at for number, decision in played.decisions.items()} == {0: 0.0, 1: 15.0, 2: 48.0}
    assert [row.over for row in played.steps] == [15.0, 36.0, 48.0, 68.0]
    assert played.latencies() == {0: (15.0, 16.5), 1: (31.0, 12.0), 2: (63.0, 0.0)}


def test_a_request_that_is_held_to_the_end_is_neither_admitted_nor_rejected() -> None:
    asked: list[tuple[int, float]] = []

    def decide(state: Mapping[str, Any]) -> str:
        asked.append((state["number"], state["now"]))
        return {0: "admit", 1: "reject"}.get(state["number"], "wait")

    played = admission.play_load(LOAD, decide)
    assert {number: decision.word for number, decision in played.decisions.items()} == {0: "admit", 1: "reject"}
    # Steps end at 15, 26 and 37 ms. The gate is asked before each step, and once more when nothing runs any more.
    assert asked == [(0, 0.0), (1, 15.0), (2, 15.0), (2, 26.0), (2, 37.0)]


def test_a_gate_that_holds_everything_is_asked_again_whenever_a_request_comes() -> None:
    asked: list[tuple[int, float]] = []

    def decide(state: Mapping[str, Any]) -> str:
        asked.append((state["number"], state["now"]))
        return "wait"

    played = admission.play_load(LOAD, decide)
    assert (played.decisions, played.steps) == ({}, [])
    assert asked == [(0, 0.0), (0, 5.0), (1, 5.0), (2, 5.0)]


def test_decisions_that_were_made_elsewhere_play_again_alike() -> None:
    def decide(state: Mapping[str, Any]) -> str:
        return "admit" if state["running"] == 0 else "reject" if state["now"] > 40 else "wait"

    played = admission.play_load(LOAD, decide)
    rounds = {number: (decision.round, decision.word) for number, decision in played.decisions.items()}
    again = admission.replay_decisions(LOAD, rounds)
    assert (again.decisions, again.steps) == (played.decisions, played.steps)


def test_each_answer_to_08d_is_told_its_own_mistake(tmp_path: Path) -> None:
    for attempt in exercise_attempts(ADMISSION):
        attempt.write(tmp_path)
        trial = Trial(tmp_path, 1)
        check_of(ADMISSION)(trial)
        assert trial.failed[:1] == ([attempt.says] if attempt.says else []), attempt.name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def admit(state):\n    return 1 / 0", "admission.py, line 2: ZeroDivisionError('division by zero')"),
        ("def admit(state):\n    return True", "admission.py: admit returned True: it returns 'admit', 'reject' or"),
        ("", "admission.py: KeyError('admit')"),
    ],
)
def test_a_fault_of_the_file_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "admission.py").write_text(text)
    told = decisions(str(tmp_path), LENGTHS, TIMES, {"step": 10, "decoding": 1, "token": 0.5}, [100, 20])
    assert told["error"].startswith(said)


# -- time that is counted from steps ---

WORDS = recordings.WORDS | {"max_num_sequences": "2", "max_num_tokens": "64", "max_tokens_in_paged_kv_cache": "1024"}


def test_a_request_arrives_after_the_steps_that_began_before_it() -> None:
    """The first two steps begin at 0 and 15 ms, the third at 26."""
    after, found = replay_counted(WORDS, [(10, 3), (10, 2)], [0.0, 20.0], COST)
    assert after == [0, 2]
    assert found == [(15.0, pytest.approx((42 - 15) / 2)), (pytest.approx(42 - 20), 11.0)]


def test_nothing_takes_time_between_the_last_answer_and_the_next_request() -> None:
    after, found = replay_counted(WORDS, [(10, 1), (10, 1)], [0.0, 1000.0], COST)
    assert after == [0, 1]
    assert found == [(15.0, 0.0), (15.0, 0.0)]


def test_the_steps_of_a_server_take_the_counted_time_and_an_idle_server_waits_for_the_next_request() -> None:
    def step(ids: str, phase: str, tokens: list[int]) -> Step:
        return Step([*ids], phase=phase, tokens=tokens, made=[1] * len(ids))

    steps = [step("a", "p", [10]), step("ab", "dp", [1, 20]), step("c", "p", [4])]
    rows = time_steps(steps, {"a": 0.0, "b": 15.0, "c": 100.0}, COST)
    assert [(row.began, row.over) for row in rows] == [(0.0, 15.0), (15.0, 36.0), (100.0, 112.0)]


def test_a_request_beyond_one_limit_is_not_good() -> None:
    times = [Latency(100, 5), Latency(100, 50), Latency(900, 5)]
    assert good_share(times, Slo(ttft=500, tpot=10)) == pytest.approx(1 / 3)


@pytest.mark.night
@pytest.mark.parametrize("seed", range(1, 31))
def test_each_answer_to_05f_is_told_its_own_mistake(tmp_path: Path, seed: int) -> None:
    """The server's steps are replayed: what is proven is that its check draws loads which tell the answers apart."""
    check = check_of(KNEE)
    names: Any = check.__globals__
    words = WORDS | {name: str(value) for name, value in KNEE.manifest.settings.items()}
    load, rng = None, random.Random(seed)
    while load is None or not load.tells_apart():
        load = names["Load"](words, rng)
    names["Load"] = lambda *_: load
    names["served"] = lambda trial, load, rate: (load.share(rate), 0, 0)
    for attempt in exercise_attempts(KNEE):
        attempt.write(tmp_path)
        trial = Trial(tmp_path, seed)
        check(trial)
        assert trial.failed[:1] == ([attempt.says] if attempt.says else []), attempt.name
