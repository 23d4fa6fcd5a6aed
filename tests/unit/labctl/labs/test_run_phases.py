"""A run's phases are known, and refused or told, before its first server starts; each verdict has a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import is_lab_error, lab_error
from machinery import with_faults_lab
from noting import Noting

from labctl.cli.main import cli
from labctl.labs.phases import PhaseRun, resolve_phases
from labctl.labs.run import RunResult
from labctl.labs.verdicts import VerdictResult, judge_verdict, verdict_section
from labctl.manifest.schema import Verdict
from labctl.options import Options
from labctl.stack.session import Session
from labkit import contention


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


def phases(lab: str, profile: str = "cpu", **settings: Any) -> tuple[list[PhaseRun], list[str]]:
    """The phases of a lab's run with these settings, and what a person would have read of them."""
    session = Session.open(listener := Noting())
    runtime = session.runtime("compose" if profile == "gpu" else "local")
    options = Options(profile, settings)
    runs = resolve_phases(session, session.catalog.lab(lab), options, runtime, quick=False, only="")
    return runs, [*(note for run in runs for note in run.notes), *listener.notes]


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("ports", ["1,2", "a,b,c"])
def test_ports_that_are_none_are_refused(ports: str) -> None:
    done = CliRunner().invoke(cli, ["up", "iterative", "--runtime", "local", "--ports", ports])
    is_lab_error(done.exception, "ports-invalid", ports)


def test_a_lab_without_a_run_cannot_be_run(checkout: Path) -> None:
    manifest = checkout / "labs" / "99-faults" / "lab.yaml"
    manifest.write_text(manifest.read_text().partition("\nrun:")[0])
    with lab_error("lab-not-runnable"):
        phases("faults")


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("lab", ["sequence", "iterative", "llama", "codegen", "batching", "schedulers", "vllm"])
def test_every_lab_has_phases_on_the_gpu_profile(lab: str) -> None:
    runs, _ = phases(lab, "gpu")
    assert runs


@pytest.mark.usefixtures("checkout")
def test_a_phases_setting_that_means_nothing_with_what_was_chosen_is_left_out_and_told() -> None:
    runs, notes = phases("llama", engine="transformers", model="random:tiny-llama")
    assert "phase exact: engine_precision is left out, it has no meaning with engine=transformers" in notes
    assert len(runs) == 3


@pytest.mark.usefixtures("checkout")
def test_a_setting_that_a_phase_overrules_is_told() -> None:
    _, notes = phases("iterative", kv_cache="true")
    assert "phase original is about kv_cache=false, whatever --set says" in notes
    assert not [note for note in notes if note.startswith("phase kv-cache is about")]


def test_a_setting_that_every_phase_overrules_is_refused(checkout: Path) -> None:
    manifest = checkout / "labs" / "99-faults" / "lab.yaml"
    manifest.write_text(manifest.read_text().replace("{name: only, ", "{name: only, set: {seconds: 0.5}, "))
    with lab_error("setting-unheeded", "seconds=1", "only has 0.5"):
        phases("faults", seconds="1")


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize(
    ("profile", "settings", "left_out"),
    [
        ("gpu", {}, 1),  # vLLM; the one with a small cache is OpenVINO's
        ("gpu", {"engine": "transformers"}, 3),
        ("cpu", {}, 0),
        ("cpu", {"speculation": "draft"}, 3),
    ],
)
def test_the_phases_about_shared_beginnings_run_wherever_an_engine_can_share_them(
    profile: str, settings: dict[str, Any], left_out: int
) -> None:
    _, notes = phases("schedulers", profile, **settings)
    assert len([note for note in notes if "phase prefix-" in note and "left out" in note]) == left_out, notes


def judged(measured: dict[str, float | None], taken: float = 0.0, **more: Any) -> VerdictResult:
    verdict = Verdict(name="v", value="a.b", text="{value:.0%}, the other {m[a.c]:.0%}", at_least=0.5, at_most=0.95)
    return judge_verdict(verdict.model_copy(update=more), measured, taken)


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
