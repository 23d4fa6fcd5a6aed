"""labctl learn ladder: the exam of my/scheduler.py."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
from checkout import ROOT
from click.testing import CliRunner
from exercise_cases import EXERCISES, begin_in
from lab_errors import is_lab_error

from labctl.cli.main import cli
from labctl.learn import growing, ladder
from labctl.learn.exercise import find_exercise


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / growing.FOLDER).mkdir()
    return begin_in(tmp_path, monkeypatch)


def goodputs(folder: Path, text: str) -> dict[str, float]:
    (folder / growing.FILE).write_text(text)
    found: dict[str, float] = ladder.goodputs(str(ROOT), str(folder))
    return found


def solved(*ids: str) -> str:
    text = ""
    for id in ids:
        text = growing.add_parts(text, find_exercise(EXERCISES, id).texts("solution")[growing.FILE])
    return text


def own(body: str) -> str:
    return f"from labsched import scheduler\n\n\nclass Scheduler(scheduler.Scheduler):\n{body}\n"


def test_each_lesson_of_the_course_is_worth_goodput(tmp_path: Path) -> None:
    """Static batching, then 05a, then 05b's memory and 06b's turns: no step of the course makes the mean worse."""
    starter = find_exercise(EXERCISES, "05a").texts("starter")[growing.FILE]
    thrashing = own("    def reserve(self):\n        return 0\n\n    def victim(self):\n        return self.running[0]")
    static, joins, fair = (
        mean(goodputs(tmp_path, text).values()) for text in (starter, solved("05a"), solved("05a", "06b"))
    )
    assert static < joins < fair
    assert mean(goodputs(tmp_path, thrashing).values()) < joins


def test_the_solutions_of_the_exercises_are_as_good_as_ours_on_every_load(tmp_path: Path) -> None:
    ours = dict(ladder.rivals(ROOT))["ours"]
    assert goodputs(tmp_path, solved("05a", "05b", "06a", "06b", "06c")) == pytest.approx(ours, rel=0.05)


def test_the_rivals_differ_on_the_loads_that_are_made_for_it() -> None:
    rivals = dict(ladder.rivals(ROOT))
    assert rivals["ours"]["flood"] > rivals["vLLM's rules"]["flood"] > rivals["first come, first served"]["flood"]
    assert rivals["vLLM's rules"]["stories"] > rivals["first come, first served"]["stories"]


def test_the_public_trace_is_that_of_the_checkout_wherever_labctl_is_installed(tmp_path: Path) -> None:
    trace = tmp_path / ladder.TRACE
    trace.parent.mkdir(parents=True)
    trace.write_text('{"timestamp": 0, "input_length": 32, "output_length": 4}\n')
    assert dict(ladder.rivals(tmp_path))["ours"]["conversation"] > 10


def test_its_table_is_eighty_columns_wide_and_ranks_a_file_among_its_rivals(root: Path) -> None:
    result = CliRunner().invoke(cli, ["learn", "ladder"])
    assert growing.OWN in result.stdout and "yours" not in result.stdout
    (root / growing.OWN).write_text(
        own("    @property\n    def places(self):\n        return 0 if self.running else 2")
    )
    result = CliRunner().invoke(cli, ["learn", "ladder"])
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split("  ")[0] for line in lines[4:8]]
    assert rows == ["yours", "first come, first served", "vLLM's rules", "ours"]


def test_a_mistake_in_the_file_is_named_with_its_line(root: Path) -> None:
    (root / growing.OWN).write_text(own("    def reserve(self):\n        return 1 / 0"))
    result = CliRunner().invoke(cli, ["learn", "ladder"])
    is_lab_error(result.exception, "scheduler-file-invalid", "line 6")
