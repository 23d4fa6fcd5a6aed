"""A run's phases are known, and refused or told, before its first server starts; each verdict has a word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lab_errors import is_lab_error

from labctl.cli.main import cli
from labctl.labs.run import RunResult
from labctl.labs.verdicts import VerdictResult, judge_verdict, verdict_section
from labctl.manifest.schema import Verdict
from labkit import contention

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the test's own with the lab of faults in it."""
    for name in ("pyproject.toml", "src", "docker", "requirements", "compose.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("labs", "model_repos"):
        (tmp_path / name).mkdir()
        for path in (ROOT / name).iterdir():
            (tmp_path / name / path.name).symlink_to(path)
    shutil.copytree(ROOT / "tests/faults_lab", tmp_path / "labs" / "99-faults")
    (tmp_path / "model_repos" / "faults").symlink_to(ROOT / "tests/faults_lab/models")
    monkeypatch.setenv("LABS_ROOT", str(tmp_path))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def dry(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--dry-run", "--runtime", "local"])


@pytest.mark.parametrize("ports", ["1,2", "a,b,c"])
def test_a_dry_run_refuses_ports_that_are_none(ports: str) -> None:
    is_lab_error(dry("up", "iterative", "--ports", ports).exception, "ports-invalid", ports)


def test_a_lab_without_a_run_has_no_dry_run_of_one(checkout: Path) -> None:
    manifest = checkout / "labs" / "99-faults" / "lab.yaml"
    manifest.write_text(manifest.read_text().partition("\nrun:")[0])
    is_lab_error(dry("run", "faults").exception, "lab-not-runnable")


def test_a_phases_setting_that_means_nothing_with_what_was_chosen_is_left_out_and_told() -> None:
    done = dry("run", "llama", "--set", "engine=transformers", "--set", "model=random:tiny-llama")
    assert done.exception is None
    assert "phase exact: engine_precision is left out, it has no meaning with engine=transformers" in done.stdout
    assert done.stdout.count("03-llama-hf-vs-trtllm/client.py") == 3


def test_a_setting_that_a_phase_overrules_is_told() -> None:
    done = dry("run", "iterative", "--set", "kv_cache=true")
    assert "phase original is about kv_cache=false, whatever --set says" in done.stdout
    assert "phase kv-cache is about" not in done.stdout


def test_a_setting_that_every_phase_overrules_is_refused(checkout: Path) -> None:
    manifest = checkout / "labs" / "99-faults" / "lab.yaml"
    text = manifest.read_text().replace("{name: only, ", "{name: only, set: {seconds: 0.5}, ")
    manifest.write_text(text)
    error = dry("run", "faults", "--set", "seconds=1").exception
    is_lab_error(error, "setting-unheeded", "seconds=1", "only has 0.5")


def verdict(at_least: float | None = None, at_most: float | None = None) -> Verdict:
    text = "{value:.0%}, the other {m[a.c]:.0%}"
    return Verdict(name="v", value="a.b", text=text, at_least=at_least, at_most=at_most)


def test_a_text_that_names_an_unmeasured_number_is_still_a_text() -> None:
    for missing in ({}, {"a.c": None}):
        assert judge_verdict(verdict(at_least=0.5), {"a.b": 0.93, **missing}).text == "93%, the other unmeasured"


def test_what_was_not_measured_has_a_word_of_its_own() -> None:
    assert judge_verdict(verdict(at_least=0.5), {}).line() == "unmeasured: v: a.b"


def test_a_verdict_that_is_not_met_names_the_bound_and_what_to_try() -> None:
    line = judge_verdict(verdict(at_least=0.5, at_most=0.9), {"a.b": 0.1, "a.c": 0}).line()
    assert line.startswith("NOT MET: 10%, the other 0%; expected at least 0.5 and at most 0.9, measured 0.1; ")
    assert judge_verdict(verdict(at_least=0.5), {"a.b": 0.9}).line().startswith("met: 90%")


@pytest.mark.parametrize(
    ("timed", "value", "taken", "word"),
    [
        (True, 0.1, 0.5, "busy"),
        (True, 0.1, 0.02, "NOT MET"),
        (True, 0.9, 0.5, "met"),
        (False, 0.1, 0.5, "NOT MET"),  # what is counted is the same on a busy machine
    ],
)
def test_seconds_missed_on_a_busy_machine_are_a_verdict_about_the_machine(
    timed: bool, value: float, taken: float, word: str
) -> None:
    judged = judge_verdict(verdict(at_least=0.5).model_copy(update={"timed": timed}), {"a.b": value, "a.c": 0}, taken)
    assert judged.word == word
    assert ("other programs took 50% of this machine's processors" in judged.line()) == (word == "busy")
    assert RunResult(Path(), {}, [judged], True).missed == (["v"] if word == "NOT MET" else [])


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


def test_a_report_has_the_verdicts() -> None:
    assert (
        verdict_section([judge_verdict(verdict(at_least=0.5), {"a.b": 1.0})])
        == "\n## Verdicts\n\n- met: 100%, the other unmeasured\n"
    )
    assert verdict_section([]) == ""


@pytest.mark.parametrize(("whole", "missed"), [(True, ["v"]), (False, [])])
def test_strict_forgives_what_a_part_of_a_lab_could_not_measure(whole: bool, missed: list[str]) -> None:
    results: list[VerdictResult] = [judge_verdict(verdict(at_least=0.5), {})]
    assert RunResult(Path(), {}, results, whole).missed == missed
    results.append(judge_verdict(verdict(at_least=0.5), {"a.b": 0.1}))
    assert RunResult(Path(), {}, results, False).missed == ["v"]
