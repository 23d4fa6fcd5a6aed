"""Traces of one's own: made from what other tools have written, and from a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lab_errors import lab_error
from recordings import made_up_recording, written

from labctl.cli.trace import trace_command
from labkit.predict import trace_sources, traces


def aiperf(at: float, prompt: int, made: int, **more: Any) -> dict[str, Any]:
    about = {"request_start_ns": int(at * 1e9), "benchmark_phase": "profiling", "was_cancelled": False}
    metrics = {
        name: {"value": value, "unit": "tokens"}
        for name, value in (("input_sequence_length", prompt), ("output_sequence_length", made))
    }
    return {"metadata": about | more, "metrics": metrics, "error": None}


def guidellm(at: float, prompt: int, made: int) -> dict[str, Any]:
    lengths = {"input_metrics": {"text_tokens": prompt}, "output_metrics": {"text_tokens": made}}
    return {"request_id": str(at), "info": {"timings": {"request_start": at}}, **lengths}


WANTED = [(0.0, 10, 5), (1.5, 20, 7)]


def test_aiperfs_records_are_converted(tmp_path: Path) -> None:
    rows = [
        aiperf(11.5, 20, 7),
        aiperf(10.0, 10, 5),
        aiperf(9.0, 3, 3, benchmark_phase="warmup"),
        aiperf(12.0, 3, 3, was_cancelled=True),
    ]
    path = tmp_path / "profile_export.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = trace_sources.convert_trace(path)
    assert [(one.at, one.prompt, one.made) for one in found.arrivals] == WANTED
    assert "1 requests" in found.remarks[0]


def test_guidellms_report_is_converted(tmp_path: Path) -> None:
    requests = {"successful": [guidellm(101.5, 20, 7), guidellm(100.0, 10, 5)], "errored": [], "incomplete": None}
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"metadata": {}, "benchmarks": [{"requests": requests}]}, indent=2))
    assert [(one.at, one.prompt, one.made) for one in trace_sources.convert_trace(path).arrivals] == WANTED


def log_line(text: str, second: int = 5) -> str:
    return f"(APIServer pid=7) INFO 11-27 22:24:{second:02} [request_logger.py:65] {text}\n"


def test_vllms_log_is_converted_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    params = "params: SamplingParams(n=1, stop=[], max_tokens={}, min_tokens=0), lora_request: None."
    log = [log_line("Started server process [7]")]
    for id, length, limit, second in (("cmpl-a-0", 10, 5, 5), ("cmpl-b-0", 20, 9, 6), ("cmpl-c-0", 4, 3, 6)):
        prompt = f"prompt: 'x, y', prompt_token_ids: {[1] * length}, prompt_embeds shape: None."
        log.append(log_line(f"Request {id} details: {prompt}", second))
        log.append(log_line(f"Received request {id}: {params.format(limit)}", second))
    log.append(log_line("Generated response cmpl-b-0 (streaming delta) details: output_token_ids: [1, 2, 3, 4]", 7))
    log.append(log_line("Generated response cmpl-b-0 (streaming delta) details: output_token_ids: [5, 6, 7]", 8))
    path = tmp_path / "server.log"
    path.write_text("".join(log))
    found = trace_sources.convert_trace(path)
    assert [(one.at, one.prompt, one.made) for one in found.arrivals] == [(0.0, 10, 5), (1.0, 20, 7), (1.5, 4, 3)]
    assert "2 answers" in found.remarks[1]
    path.write_text("".join(line for line in log if "details" not in line))
    with lab_error("trace-source-unknown", "LABS_RECORD"):
        trace_sources.convert_trace(path)


NESTED = '{"a": ' * 100_000


@pytest.mark.parametrize(
    "text", ["", "{}", "hello\n", '{"benchmarks": 3}', '{"metadata": {}, "metrics": {}}', "{", NESTED]
)
def test_what_is_none_of_these_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with lab_error("trace-empty" if "metadata" in text else "trace-source-unknown"):
        trace_sources.convert_trace(path)


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_recording_becomes_a_trace_that_bench_reads(ending: str, tmp_path: Path) -> None:
    made = made_up_recording()
    log = written(tmp_path, made)
    target = tmp_path / f"trace{ending}"
    done = CliRunner().invoke(trace_command, ["convert", str(log), str(target)], catch_exceptions=False)
    assert done.exit_code == 0 and f"{len(made.arrivals):,} requests" in done.output
    read = traces.read_trace(target)
    assert [(one.prompt, one.made) for one in read] == [(one.prompt, one.made) for one in made.arrivals]
    if ending == ".csv":
        assert [one.tenant for one in read] == [one.tenant for one in made.arrivals]
    assert [one.at for one in read] == pytest.approx([one.at for one in made.arrivals], abs=6e-4)
