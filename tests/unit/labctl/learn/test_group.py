"""`labctl workshop report`: one table of a group, whatever one of its files may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from lab_errors import lab_error

from labctl.cli.main import cli


def exercises(path: Path, **states: str) -> Path:
    rows = [
        {"id": id[1:], "lab": "iterative", "title": "t", "kind": "fix", "minutes": 5, "state": state}
        for id, state in states.items()
    ]
    path.write_text(json.dumps(rows))
    return path


def report(*files: Path) -> tuple[str, str]:
    result = CliRunner().invoke(cli, ["workshop", "report", *map(str, files)])
    if result.exception:
        raise result.exception
    return result.stdout, result.stderr


def test_a_group_is_one_table_with_a_sign_per_exercise_and_counts(tmp_path: Path) -> None:
    ada = exercises(tmp_path / "ada.json", _02a="passed", _02b="passed")
    bo = exercises(tmp_path / "bo.json", _02a="passed", _02b="started")
    cy = exercises(tmp_path / "cy.json", _02a="new")
    rows = [line.split() for line in report(cy, bo, ada)[0].splitlines()]
    assert rows[0] == ["02a", "02b", "passed"]
    assert rows[2:6] == [
        ["ada", "x", "x", "2", "of", "2"],
        ["bo", "x", "o", "1", "of", "2"],
        ["cy", ".", ".", "0", "of", "2"],
        ["passed", "2", "1", "of", "3"],
    ]


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", '[{"id": "02a", "state": "done"}]', '[{"state": "new"}]'])
def test_a_bad_file_is_named_and_the_others_are_told(tmp_path: Path, content: str) -> None:
    good = exercises(tmp_path / "ada.json", _02a="passed")
    (bad := tmp_path / "bad.json").write_text(content)
    out, err = report(good, bad, tmp_path / "gone.json")
    assert "ada" in out and "bad" not in out
    assert str(bad) in err and "gone.json: No such file" in err


def test_nothing_but_bad_files_is_an_error_with_the_way_to_make_good_ones(tmp_path: Path) -> None:
    with lab_error("reports-unreadable"):
        report(tmp_path / "gone.json")
