"""A run: what its program opens has a person's settings under its own, and each verdict has a word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import is_lab_error, lab_error
from machinery import with_faults_lab
from noting import Noting

from labctl import contention
from labctl.cli.main import cli
from labctl.lab import Verdict
from labctl.labs import run
from labctl.labs.run import RunResult
from labctl.labs.servers import Servers
from labctl.labs.verdicts import VerdictResult, judge_verdict, verdict_section
from labctl.options import Options
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the test's own with the lab of faults in it."""
    for name in ("pyproject.toml", "src", "docker", "requirements", "compose.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("labs", "model_repos"):
        (tmp_path / name).mkdir()
        for path in (ROOT / name).iterdir():
            (tmp_path / name / path.name).symlink_to(path)
    monkeypatch.setenv("LABS_ROOT", str(tmp_path))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    return with_faults_lab(tmp_path)


def opened(
    monkeypatch: pytest.MonkeyPatch, lab: str, metrics: dict[str, Any] | None = None, **settings: Any
) -> tuple[list[Options], list[str]]:
    """The options of each server that a lab's program opens with these settings, and what a person reads of them."""
    session, found = Session.open(listener := Noting()), []

    def next(servers: Servers, stack: str, options: Options) -> RunningStack:
        found.append(options)
        return cast(RunningStack, None)

    monkeypatch.setattr(Servers, "next", next)
    monkeypatch.setattr(run._Opened, "client", lambda opened, script, phase: None)
    monkeypatch.setattr(run._Run, "report", lambda made, script: write_result(made.out, metrics or {}))
    outcome = run.run_lab(session, session.catalog.lab(lab), Options("cpu", settings), quick=False, keep=False)
    assert [verdict.word for verdict in outcome.verdicts] == ["unmeasured"] * len(outcome.verdicts)
    return found, listener.notes


def write_result(out: Path, metrics: dict[str, Any]) -> None:
    (out / "result.json").write_text(json.dumps({"metrics": metrics, "settings": {}}))


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("ports", ["1,2", "a,b,c"])
def test_ports_that_are_none_are_refused(ports: str) -> None:
    done = CliRunner().invoke(cli, ["up", "iterative", "--runtime", "local", "--ports", ports])
    is_lab_error(done.exception, "ports-invalid", ports)


def test_a_lab_without_a_program_cannot_be_run(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = checkout / "labs" / "99-faults" / "lab.py"
    lab.write_text(lab.read_text().replace("    run=run,\n", ""))
    with lab_error("lab-not-runnable"):
        opened(monkeypatch, "faults")


@pytest.mark.usefixtures("checkout")
def test_a_programs_setting_that_means_nothing_with_what_was_chosen_is_left_out_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, notes = opened(monkeypatch, "llama", engine="transformers", model="random:tiny-llama")
    assert [dict(options.set).get("engine_precision") for options in runs] == [None] * 3
    assert [note.partition(" ")[0] for note in notes if "is left out" in note] == ["engine_precision"]


@pytest.mark.usefixtures("checkout")
def test_a_persons_setting_that_means_nothing_with_the_programs_is_left_out_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, notes = opened(monkeypatch, "vllm", block_size="64")
    assert [dict(options.set).get("block_size") for options in runs] == ["64", "64", None, None]
    assert [note.partition(" ")[0] for note in notes if "is left out" in note] == ["block_size"] * 2


@pytest.mark.usefixtures("checkout")
def test_a_programs_setting_wins_over_a_persons_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, notes = opened(monkeypatch, "iterative", kv_cache="true", threads="1")
    assert [options.set for options in runs] == [{"kv_cache": value, "threads": "1"} for value in (False, True)]
    assert [note for note in notes if "whatever --set says" in note] == [
        "this part is about kv_cache=false, whatever --set says"
    ]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('server.client("client.py"', 'server.client("clinet.py"'),
        ('lab.report("report.py")', 'lab.report("reprot.py")'),
        ('repository=["faults"]', 'repository=["fualts"]'),
        ("s.behaviour", "s.behavior"),
        ("lab.serving(QUICK)", "lab.serving(QUIKC)"),
        ("{value:.0f} times", "{vlaue:.0f} times"),
    ],
    ids=["client", "report", "repository", "serve", "run", "field"],
)
def test_a_mistake_in_a_labs_program_is_refused_with_its_line_before_anything_starts(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    program = checkout / "labs" / "99-faults" / "lab.py"
    text = program.read_text()
    assert text.count(right) == 1
    program.write_text(text.replace(right, wrong))
    line = 1 + text[: text.index(right)].count("\n")
    monkeypatch.setattr(run, "new_results_folder", lambda *_: pytest.fail("the run began"))
    with lab_error("lab-broken", program, f"line {line}: "):
        opened(monkeypatch, "faults")


@pytest.mark.parametrize("text", ["{value:.0f}, {m[ehco.count]:.0f}", "{value:.0f}, {m[echo.text]:.0f}"])
def test_a_verdicts_text_that_does_not_fit_what_a_whole_run_measured_is_refused_with_its_line(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    program = checkout / "labs" / "99-faults" / "lab.py"
    program.write_text(program.read_text().replace("the echo came back {value:.0f} times", text))
    line = next(number for number, each in enumerate(program.read_text().splitlines(), 1) if text in each)
    metrics = {"echoed": 1, "echo": {"count": 1, "text": "a"}}
    with lab_error("lab-broken", program, f"line {line}: "):
        opened(monkeypatch, "faults", metrics=metrics)


def judged(measured: dict[str, float | None], taken: float = 0.0, **more: Any) -> VerdictResult:
    verdict = Verdict(name="v", value="a.b", text="{value:.0%}, the other {m[a.c]:.0%}", at_least=0.5, at_most=0.95)
    return judge_verdict(replace(verdict, **more), measured, taken)


def test_a_text_that_names_an_unmeasured_number_is_still_a_text() -> None:
    for missing in ({}, {"a.c": None}):
        assert judged({"a.b": 0.93, **missing}).text == "93%, the other unmeasured"


@pytest.mark.parametrize(
    ("timed", "measured", "taken", "word", "told"),
    [
        (False, {}, 0.0, "unmeasured", ["a.b"]),
        (False, {"a.b": 0.9, "a.c": 0}, 0.0, "met", ["90%, the other 0%"]),
        (False, {"a.b": 0.1, "a.c": 0}, 0.5, "NOT MET", ["at least 0.5 and at most 0.95, measured 0.1;"]),
        (False, {"a.b": 0.96}, 0.0, "NOT MET", []),
        (True, {"a.b": 0.1}, 0.5, "busy", ["measured 0.1,", "50% of this machine's processors"]),
        (True, {"a.b": 0.1}, 0.02, "NOT MET", []),
        (True, {"a.b": 0.9}, 0.5, "met", []),
    ],
)
def test_a_verdict_has_a_word_its_bound_and_what_was_measured(
    timed: bool, measured: dict[str, float | None], taken: float, word: str, told: list[str]
) -> None:
    """Seconds missed on a busy machine are about the machine; what is counted is the same there."""
    found = judged(measured, taken, timed=timed)
    assert found.word == word and all(each in found.line() for each in told)
    assert verdict_section([found]).endswith(f"\n- {found.line()}\n")


def test_a_program_that_computes_on_each_processor_is_seen_as_contention() -> None:
    spin = "import os, sys\nprint(flush=True)\nwhile os.getppid() == int(sys.argv[1]): pass"
    argv = [sys.executable, "-c", spin, str(os.getpid())]
    busy = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in os.sched_getaffinity(0)]
    try:
        for process in busy:
            assert process.stdout and process.stdout.read(1)  # it runs
        assert contention.share_taken_by_others() > contention.TOO_MUCH
    finally:
        for process in busy:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("measured", "taken", "whole", "missed"),
    [({}, 0, True, True), ({}, 0, False, False), ({"a.b": 0.1}, 0, False, True), ({"a.b": 0.1}, 0.5, True, False)],
)
def test_strict_forgives_a_busy_machine_and_what_a_part_of_a_lab_could_not_measure(
    measured: dict[str, float | None], taken: float, whole: bool, missed: bool
) -> None:
    results = [judged(measured, taken, timed=True)]
    assert RunResult(Path(), {}, results, whole).missed == (["v"] if missed else [])
