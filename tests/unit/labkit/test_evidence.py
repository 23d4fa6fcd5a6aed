"""What a lab keeps as evidence, and what is told while a load runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from lab_errors import lab_error

from labctl.cli import metrics
from labctl.cli.bench import bench_command
from labctl.labs import workloads
from labkit.client import dataset
from labkit.client.live import ProgressLine
from labkit.client.metrics import ModelCounters, Snapshot, parse_metrics
from labkit.evidence import stats, steplog
from labkit.evidence.records import RequestRecord, token_overlap
from labkit.tables import format_table
from labsched.replay.slo import Slo


def answered(start: float, *times: float, tokens: int = 0) -> RequestRecord:
    return RequestRecord("r", "m", "p", start=start, end=times[-1], responses=[(t, "a") for t in times], tokens=tokens)


def step(at: float) -> str:
    return json.dumps({"t": at, "dur": 0.5, "model": "m", "instance": "0", "batch": 1, "ids": ["1"]})


@pytest.mark.parametrize(
    ("steps", "sent", "kept"),
    [
        ((12.0, 9.0, 3.0, 20.0), (11.0, 12.0), [(9.0, True), (12.0, False), (20.0, True)]),
        # The last step of the warm-up ends after the first request was sent.
        ((11.3, 11.9), (11.2,), [(11.3, True), (11.9, False)]),
    ],
)
def test_the_kept_step_log_is_in_order_and_marks_what_no_request_was_in_flight_for(
    tmp_path: Path, steps: tuple[float, ...], sent: tuple[float, ...], kept: list[tuple[float, bool]]
) -> None:
    (tmp_path / "steps-m-0.jsonl").write_text("\n".join(step(at) for at in steps) + "\n")
    steplog.keep_step_log(tmp_path, tmp_path / "kept.jsonl", 5.0, [answered(at, at + 2) for at in sent])
    lines = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [(line["t"], line.get("warm_up", False)) for line in lines] == kept


def test_the_last_step_of_a_log_that_can_be_replayed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = json.dumps({"kind": "scheduler", "t": 1.0, "model": "m", "instance": "0"})
    last = json.dumps({**json.loads(step(12.6)), "ended": {"1": "length"}})
    log = tmp_path / "steps-m-0.jsonl"
    log.write_text(f"{scheduler}\n{step(12.0)}\n")
    looked: list[float] = []

    def look(seconds: float) -> None:
        looked.append(seconds)
        if len(looked) == 2:
            log.write_text(f"{log.read_text()}{last}\n")

    monkeypatch.setattr("labkit.waiting.time.sleep", look)
    steplog.keep_step_log(tmp_path, tmp_path / "kept.jsonl", 5.0, [answered(11.2, 13.0)])
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [line["t"] for line in kept] == [1.0, 12.0, 12.6] and len(looked) == 2


def test_the_overlap_in_tokens_is_the_same_however_slow_the_machine_is() -> None:
    one, other = answered(0, 1, 2, 3, 4), answered(0, 3, 4, 5, 6)
    slow, slower = answered(0, 1, 2, 30, 40), answered(0, 30, 40, 500, 600)
    assert token_overlap(one, other) == token_overlap(slow, slower) == pytest.approx(0.5)
    assert token_overlap(answered(0, 1, 2), answered(0, 3, 4)) == 0


def test_an_answer_that_comes_whole_has_no_time_to_first_token() -> None:
    whole = stats.metrics([answered(0.0, 2.0, tokens=8)], Slo(ttft=5000))
    assert {"time_to_first_token", "goodput", "time_per_output_token", "inter_token_latency"}.isdisjoint(whole)
    assert workloads.tabulate({"1 in flight": whole})[1][0][3:7] == ["-"] * 4
    assert "time_to_first_token" in stats.metrics([answered(0.0, 1.0, 2.0)])


def test_two_kinds_of_load_at_once_are_refused() -> None:
    done = CliRunner().invoke(bench_command, ["iterative", "--concurrency", "4", "--request-rate", "2"])
    assert done.exit_code == 2
    assert "two kinds of load" in done.output


@pytest.mark.parametrize("option", [["--set", "max_batch_size=2"], ["--against-engine"]])
def test_an_option_that_means_nothing_for_a_server_elsewhere_is_refused_by_its_own_name(option: list[str]) -> None:
    done = CliRunner().invoke(bench_command, ["--endpoint", "127.0.0.1:1", "--model", "m", *option])
    assert done.exit_code == 2
    assert f"without {option[0]}\n" in done.output


@pytest.mark.parametrize("read", [dataset.load_dataset, workloads.prompts_from])
@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "[]", "[1, 2]", "no json", '[{"input": 3}]'])
def test_a_dataset_that_is_none_is_refused(tmp_path: Path, read: object, text: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with lab_error("dataset-empty" if text == "[]" else "dataset-unreadable", path):
        read(path)  # type: ignore[operator]


@pytest.mark.parametrize("read", [dataset.load_dataset, workloads.prompts_from])
def test_a_dataset_of_a_gigabyte_is_refused_before_it_is_read(tmp_path: Path, read: object) -> None:
    path = tmp_path / "data.json"
    with path.open("wb") as file:
        file.truncate(2**30)  # a hole: it takes no room on the disk
    with lab_error("dataset-too-large"):
        read(path)  # type: ignore[operator]


def test_a_prompt_that_is_not_unicode_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('["a prompt", "half \\ud800"]')
    with lab_error("dataset-unreadable", "row 2", "surrogate"):
        workloads.prompts_from(path)


def test_a_wide_table_has_its_header_word_by_word() -> None:
    rows = [("direct", "1.11", "20.87")]
    header = ("strategy", "mean batch", "p99 ms")
    assert len(format_table(rows, header, width=80).splitlines()) == 3
    narrow = format_table(rows, header, width=24).splitlines()
    assert [line.split() for line in narrow[:2]] == [["mean", "p99"], ["strategy", "batch", "ms"]]
    assert all(len(line) <= 24 for line in narrow)


def test_a_table_has_its_width_where_a_notebook_forces_colour_on_a_dumb_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = format_table([("a name " * 12, 1)], ("name", "n"), width=110).splitlines()
    assert shown[-1].split()[-1] == "1" and len(shown) == 3


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("labkit.client.live.time.monotonic", lambda: now)
    stream = io.StringIO()
    with ProgressLine("chat", stream) as progress:
        for second in range(12):
            now = float(second)
            progress(second, 98)
    assert stream.getvalue().splitlines() == [
        "  chat: 5 of 98 requests answered, 5 s",
        "  chat: 10 of 98 requests answered, 10 s",
    ]


def test_the_kv_caches_blocks_are_shown_and_idle_models_left_out_of_a_watch() -> None:
    text = 'labs_kv_blocks_used{model="tensorrt_llm"} 7\nlabs_preemptions_total{model="tensorrt_llm"} 5\n'
    counted = {"tensorrt_llm": ModelCounters(succeeded=2, inferences=2, exec_count=1), "idle": ModelCounters()}
    now = Snapshot(counted, parse_metrics(text).own)
    assert "kv blocks used" in metrics.describe_snapshot(now)
    assert "idle" in metrics.describe_snapshot(now)
    watched = metrics.describe_snapshot(
        now.since(Snapshot({}, {("tensorrt_llm", "labs_preemptions_total"): 4.0})), busy=True
    )
    assert "idle" not in watched
    assert {line.split()[-1] for line in watched.splitlines() if "kv blocks" in line} == {"7"}
    assert {line.split()[-1] for line in watched.splitlines() if "preemptions" in line} == {"1"}
    assert metrics.describe_snapshot(Snapshot({"idle": ModelCounters()}), busy=True) == "nothing: no model was asked"
