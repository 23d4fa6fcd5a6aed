"""Guesses before a run: asked at a terminal alone, shown beside what was measured, and kept."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner
from exercise_cases import begin_in
from lab_programs import rehearse

from labctl.catalog import load_catalog
from labctl.cli import guess
from labctl.cli import run as cli_run
from labctl.cli.main import cli
from labctl.lab import Guess, Lab
from labctl.labs.run import RunResult
from labctl.learn.progress import PASSED, Progress
from labctl.workspace import Workspace

LABS = load_catalog(Workspace(ROOT, ROOT / ".cache")).labs


@pytest.mark.parametrize("lab", LABS, ids=[lab.short for lab in LABS])
def test_every_lab_asks_for_a_number_that_one_of_its_verdicts_is_about(lab: Lab) -> None:
    assert lab.guess and lab.guess.question.endswith("?")
    verdicts = rehearse(lab, "cpu").verdicts
    fields = {name for verdict in verdicts for _, name, _, _ in string.Formatter().parse(verdict.text)}
    metrics = {verdict.value for verdict in verdicts} | {name[2:-1] for name in fields if name and name[:2] == "m["}
    assert lab.guess.value in metrics


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A checkout in which a run of lab 02 measures 2; whether there is a terminal."""
    begin_in(tmp_path, monkeypatch)
    chosen = {"terminal": True}
    monkeypatch.setattr(cli_run, "is_terminal", lambda: chosen["terminal"])

    def run_lab(session: object, lab: Lab, *_: object) -> RunResult:
        (tmp_path / "made").mkdir()
        assert lab.guess
        return RunResult(tmp_path / "made", {"metrics": {lab.guess.value: 2}}, [], False)

    monkeypatch.setattr(cli_run, "run_lab", run_lab)
    monkeypatch.setattr("labctl.pages.live.replay.write_timeline_page", lambda folder: None)
    return chosen


def kept(root: Path) -> list[dict[str, Any]]:
    path = root / ".labs" / "exercises.json"
    found: list[dict[str, Any]] = json.loads(path.read_text()).get("guesses", []) if path.is_file() else []
    return found


def test_a_guess_stands_beside_what_was_measured_and_is_kept_with_the_progress(
    tmp_path: Path, answers: dict[str, Any]
) -> None:
    progress = Progress(Workspace(tmp_path, tmp_path / "cache"))
    progress.record_check("02a", passed=True)
    done = CliRunner().invoke(cli, ["run", "iterative"], input="many\n40\n", catch_exceptions=False)
    assert "40 tokens" in done.output and "2 tokens" in done.output
    (entry,) = kept(tmp_path)
    assert (entry["lab"], entry["guessed"], entry["measured"]) == ("02", 40, 2)
    assert progress.of("02a").state == PASSED and progress.entries().keys() == {"02a"}
    progress.record_guess("05", 1.5, None)
    assert [each["lab"] for each in kept(tmp_path)] == ["02", "05"]


@pytest.mark.parametrize(
    ("arguments", "terminal"), [(["--no-guess"], True), ([], False), (["--json", "-"], True), (["--json"], True)]
)
def test_nobody_is_asked_where_nobody_answers(
    tmp_path: Path, answers: dict[str, Any], arguments: list[str], terminal: bool
) -> None:
    answers["terminal"] = terminal
    CliRunner().invoke(cli, ["run", "iterative", *arguments], input="40\n")
    assert kept(tmp_path) == []


@pytest.mark.usefixtures("answers")
def test_an_empty_line_is_no_guess(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["run", "iterative"], input="\n", catch_exceptions=False)
    assert done.exit_code == 0 and kept(tmp_path) == []


def test_a_share_is_said_in_percent_and_what_is_missing_is_said() -> None:
    share = Guess(question="?", value="a", unit="%")
    assert (share.measured({"a": 0.5}), share.in_words(50)) == (50, "50%")
    assert (share.measured({}), share.measured({"a": True}), share.in_words(None)) == (None, None, "not measured")
    assert Guess(question="?", value="a", unit="tokens").in_words(1200) == "1,200 tokens"


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_a_drawn_load_is_scheduled_whole_and_within_the_slots(seed: int, static: bool) -> None:
    load = guess.draw_load(random.Random(seed))
    strips = guess.strips(load, static)
    for request in load:
        marks = strips[request.name]
        assert marks.count(guess.PREFILL) == 1 and marks.count(guess.DECODE) == request.answer - 1
        assert len(marks.rstrip(guess.WAITS)) == len(marks) and marks[: request.arrives - 1].strip() == ""
    for step in range(max(map(len, strips.values()))):
        assert sum(marks[step : step + 1] in ("P", "=") for marks in strips.values()) <= guess.SLOTS


def test_a_class_is_shown_the_same_load_again_by_its_number() -> None:
    first, second = (CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["guess", "20"], input="20\n\n") for _ in range(2))
    assert first.exit_code == 0 and first.output == second.output
    assert "static batching" in first.output and max(map(len, first.output.splitlines())) <= 80
