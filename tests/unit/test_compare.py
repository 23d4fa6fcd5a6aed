"""labctl compare: what it takes, what it skips, what it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.cli.compare import compare_command
from labctl.errors import LabError
from labctl.measure.compare import compare


def result(folder: Path, **changed: Any) -> Path:
    """A folder with a result, some of whose parts are changed; None takes a part away."""
    document = {"schema_version": 1, "lab": "02", "settings": {}, "metrics": {"a": {"tps": 10.0}}, **changed}
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    return folder


def test_results_are_compared_by_what_all_of_them_measured(tmp_path: Path) -> None:
    found = compare([result(tmp_path / "x"), result(tmp_path / "y", metrics={"a": {"tps": 25.0, "more": 1.0}})])
    assert (found.names, found.metrics, found.settings) == (["x", "y"], {"a.tps": [10.0, 25.0]}, {})


def test_the_settings_that_differ_are_told(tmp_path: Path) -> None:
    one = result(tmp_path / "x", settings={"threads": 2, "model": "m", "kv_cache": True})
    other = result(tmp_path / "y", settings={"threads": 1, "model": "m"})
    assert compare([one, other]).settings == {"threads": ["2", "1"], "kv_cache": ["True", "-"]}


def test_a_run_without_a_result_and_a_bench_beside_runs_are_skipped_and_told(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    bench = result(tmp_path / "b", settings={"bench_model": "m"}, metrics={"8 in flight": {"tps": 3.0}})
    found = compare([bench, tmp_path / "cut", result(tmp_path / "x"), result(tmp_path / "y")])
    assert found.names == ["x", "y"]
    assert [reason.partition(":")[0] for reason in found.skipped] == ["cut", "b"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lab": "03"}, "different labs"),
        ({"metrics": {"other": 1.0}}, "no metric in common"),
        ({"schema_version": 99}, "schema version"),
        ({"lab": None}, "not a result"),
        ({"lab": ["02"]}, "not a result"),
        ({"metrics": None}, "not a result"),
        ({"metrics": [1, 2]}, "not a result"),
        ({"settings": "none"}, "not a result"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=message):
        compare([result(tmp_path / "x"), result(tmp_path / "y", **changed)])


def test_one_result_alone_is_refused_with_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    with pytest.raises(LabError) as caught:
        compare([result(tmp_path / "x"), tmp_path / "cut"])
    assert "cut: it has no result.json" in caught.value.why


def test_ten_rows_are_shown_and_the_judged_ones_first(tmp_path: Path) -> None:
    numbers = {f"n{n}": float(n) for n in range(30)} | {"output_token_throughput": 5.0}
    found = compare([result(tmp_path / name, metrics=numbers) for name in ("x", "y")])
    shown = found.headlines(["n29"])
    assert (len(shown), shown[:2]) == (10, ["n29", "output_token_throughput"])


def test_all_shows_every_row_and_the_rest_fits_a_terminal(tmp_path: Path) -> None:
    numbers = {f"n{n}": float(n) for n in range(30)}
    paths = [str(result(tmp_path / f"2026112{n}-101010", metrics=numbers)) for n in range(2)]
    few = CliRunner().invoke(compare_command, paths)
    every = CliRunner().invoke(compare_command, [*paths, "--all"])
    assert "10 of 30 metrics" in few.output
    assert all(len(line) <= 80 for line in few.output.splitlines())
    assert "n29" in every.output
