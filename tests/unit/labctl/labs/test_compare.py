"""labctl compare: what it takes, what it skips, what it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lab_errors import lab_error

from labctl.cli.explain import compare_command
from labctl.labs.compare import SHOWN, compare


def result(folder: Path, **changed: Any) -> Path:
    """A folder with a result, some of whose parts are changed; None takes a part away."""
    document = {"schema_version": 2, "lab": "02", "settings": {}, "metrics": {"a": {"tps": 10.0}}, **changed}
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


def test_two_files_of_one_folder_are_compared_by_their_names(tmp_path: Path) -> None:
    files = []
    for name, rate in (("before", 10.0), ("after", 25.0)):
        made = result(tmp_path / f"of-{name}", metrics={"tps": rate}) / "result.json"
        files.append(made.rename(tmp_path / f"{name}.json"))
    found = compare(files)
    assert (found.names, found.metrics) == (["before", "after"], {"tps": [10.0, 25.0]})


def test_two_results_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    paths = [result(tmp_path / folder / "same") for folder in ("x", "y")]
    assert compare(paths).names == [str(path) for path in paths]


def test_a_result_named_twice_is_refused_with_its_name(tmp_path: Path) -> None:
    one = result(tmp_path / "x")
    with lab_error("compare-too-few", "x: "):
        compare([one, one / "result.json"])


def test_how_it_was_run_is_a_setting_that_differs(tmp_path: Path) -> None:
    one = result(tmp_path / "x", runtime="local", quick=True)
    assert compare([one, result(tmp_path / "y", runtime="compose", quick=False)]).settings == {
        "runtime": ["local", "compose"],
        "quick": ["True", "False"],
    }
    assert compare([one, result(tmp_path / "z")]).settings["quick"] == ["True", "unknown"]


@pytest.mark.parametrize(("whole", "said"), [(1401.0, True), (900.0, False)])
def test_where_a_model_of_whole_batches_wins_a_sentence_says_why(tmp_path: Path, whole: float, said: bool) -> None:
    paths = []
    for model, kind, rate in (("it", "iterative", 1012.0), ("simple", "dynamic", whole)):
        settings = {"bench_model": model, "scheduling": kind}
        loads = {"4 in flight": {"output_token_throughput": rate}}
        paths.append(str(result(tmp_path / model, settings=settings, metrics=loads)))
    output = " ".join(CliRunner().invoke(compare_command, paths).output.split())
    assert ("simple makes more tokens/s than it: all answers have one length" in output) == said


@pytest.mark.parametrize(("other", "differ"), [("ttft<9ms", True), ("ttft<5ms", False)])
def test_goodput_is_a_headline_and_different_limits_are_named(tmp_path: Path, other: str, differ: bool) -> None:
    paths = []
    for name, slo, goodput in (("x", "ttft<5ms", 2.0), ("y", other, 3.0)):
        load = {f"n{n}": float(n) for n in range(30)} | {"goodput": goodput}
        paths.append(result(tmp_path / name, settings={"bench_model": "m", "slo": slo}, metrics={"2/s": load}))
    found = compare(paths)
    assert (found.headlines()[0], found.metrics["2/s.goodput"]) == ("2/s.goodput", [2.0, 3.0])
    expected = ["goodput counts requests within different limits: ttft<5ms and ttft<9ms"]
    assert found.remarks == (expected if differ else [])


def test_a_run_without_a_result_and_a_bench_beside_runs_are_skipped_and_told(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    bench = result(tmp_path / "b", settings={"bench_model": "m"}, metrics={"8 in flight": {"tps": 3.0}})
    found = compare([bench, tmp_path / "cut", result(tmp_path / "x"), result(tmp_path / "y")])
    assert found.names == ["x", "y"]
    assert [reason.partition(":")[0] for reason in found.skipped] == ["cut", "b"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"lab": "03"}, "compare-other-labs"),
        ({"metrics": {"other": 1.0}}, "compare-nothing-common"),
        ({"schema_version": 99}, "result-other-version"),
        ({"lab": None}, "result-invalid"),
        ({"lab": ["02"]}, "result-invalid"),
        ({"metrics": None}, "result-invalid"),
        ({"metrics": [1, 2]}, "result-invalid"),
        ({"settings": "none"}, "result-invalid"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, changed: dict[str, Any], code: str) -> None:
    with lab_error(code):
        compare([result(tmp_path / "x"), result(tmp_path / "y", **changed)])


def test_json_of_a_prediction_is_one_document_and_of_more_is_refused(tmp_path: Path) -> None:
    path = result(tmp_path / "x")
    document = {"set": {}, "guess": {}, "predicted": {}, "paced": True}
    (path / "prediction.json").write_text(json.dumps(document))
    shown = CliRunner().invoke(compare_command, [str(path), "--json"])
    assert json.loads(shown.output) == document
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "prediction.json").write_text(json.dumps(document))
    for other in (tmp_path / "y", result(tmp_path / "z")):
        refused = CliRunner().invoke(compare_command, [str(path), str(other), "--json"])
        assert refused.exit_code == 2


def test_one_result_alone_is_refused_with_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    with lab_error("compare-too-few", "cut: "):
        compare([result(tmp_path / "x"), tmp_path / "cut"])


def test_the_rows_that_matter_are_shown_and_the_judged_ones_first(tmp_path: Path) -> None:
    numbers = {f"n{n}": float(n) for n in range(30)} | {"output_token_throughput": 5.0}
    verdicts = [{"metric": "n29"}]
    found = compare([result(tmp_path / name, metrics=numbers, verdicts=verdicts) for name in ("x", "y")])
    shown = found.headlines()
    assert (len(shown), shown[:2]) == (SHOWN, ["n29", "output_token_throughput"])


def test_all_shows_every_row_and_the_rest_fits_a_terminal(tmp_path: Path) -> None:
    numbers = {f"n{n}": float(n) for n in range(30)}
    paths = [str(result(tmp_path / f"2026112{n}-101010", metrics=numbers)) for n in range(2)]
    few = CliRunner().invoke(compare_command, paths)
    every = CliRunner().invoke(compare_command, [*paths, "--all"])
    assert f"{SHOWN} of 30 metrics" in few.output
    assert all(len(line) <= 80 for line in few.output.splitlines())
    assert "n29" in every.output


def test_the_percentiles_of_the_three_latencies_matter_and_the_schedulers_batch_stands_for_tritons(
    tmp_path: Path,
) -> None:
    names = ("time_to_first_token", "time_per_output_token", "inter_token_latency")
    measured: dict[str, Any] = {name: {"p50": 1.0, "p90": 1.0, "p95": 2.0, "p99": 3.0} for name in names}
    measured |= {"triton": {"mean_batch": 1.0}, "scheduler": {"mean_batch": 4.0}}
    changed: dict[str, Any] = {"metrics": {"4/s": measured}}
    found = compare([result(tmp_path / name, **changed) for name in "xy"])
    shown = found.headlines()
    assert {f"4/s.{name}.p{percent}" for name in names for percent in (50, 95, 99)} <= {*shown}
    assert "4/s.scheduler.mean_batch" in shown and "4/s.triton.mean_batch" not in shown
