"""The labs' reports of runs that are not whole: of an engine that writes no step log (NVIDIA's), of one side alone."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from lab_programs import rehearse

from labctl import catalog
from labctl.labs.verdicts import UNMEASURED, judge_verdict
from labctl.workspace import Workspace
from labkit.client import identity
from labkit.evidence import results, stats
from labkit.evidence.records import RequestRecord

CATALOG = catalog.load_catalog(Workspace(ROOT, ROOT / "unused"))
PHASES = ("static", "inflight", "no-evict", "max-utilization")
COUNTED = {"steps": 20, "mean_batch": 2.0, "max_batch": 3, "max_kv_blocks_used": 4, "kv_blocks": 9, "preemptions": 1}
Report = Callable[[str, dict[str, dict[str, Any]], dict[str, Any]], tuple[dict[str, Any], str]]


def report_of(lab: str) -> Path:
    return ROOT / "labs" / lab / "report.py"


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """``reported(lab, phases, settings)``: what the lab's report makes of what its clients left, phase by phase."""

    def run(lab: str, phases: dict[str, dict[str, Any]], settings: dict[str, Any]) -> tuple[dict[str, Any], str]:
        for phase, found in phases.items():
            results.write_phase(tmp_path, phase, {"triton": "2.39.0", **found}, [])
            (tmp_path / f"context-{phase}.json").write_text(json.dumps({"lab": lab, "settings": settings}))
        monkeypatch.setattr("sys.argv", [str(report_of(lab)), str(tmp_path)])
        runpy.run_path(str(report_of(lab)), run_name="__main__")
        return results.load_result(tmp_path)["metrics"], (tmp_path / "report.md").read_text()

    return run


# -- lab 05 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def report(reported: Report) -> Any:
    """``report(scheduling)``: what is made of all four phases, with that in place of what a log says."""

    def run(scheduling: dict[str, Any], phases: Sequence[str] = PHASES) -> tuple[dict[str, Any], str]:
        records = [
            RequestRecord(str(n), "m", "a text", responses=[(1.0 + n, "")], end=1.0 + n, input_tokens=5, tokens=7)
            for n in range(3)
        ]
        chat: dict[str, Any] = {"table": identity.identity_metrics(records), "scheduling": scheduling, "steps": []}
        chat["records"] = [record.to_json() for record in records]
        return reported("05-batching-policies", {phase: {"workloads": {"chat": chat}} for phase in phases}, {})

    return run


def test_without_a_step_log_the_ratios_are_there_and_the_steps_are_not(report: Any) -> None:
    metrics, text = report({})
    assert metrics["ratios"]["chat"]["requests_per_second"] == 1.0
    assert "engine_steps" not in metrics["ratios"]["chat"]
    assert "Engine steps" not in text
    assert "requests_per_second" in text
    assert "preemptions" not in text


def test_with_a_step_log_the_steps_are_compared_and_evictions_counted(report: Any) -> None:
    metrics, text = report(COUNTED)
    assert metrics["ratios"]["chat"]["engine_steps"] == 1.0
    assert metrics["policies"]["max-utilization"]["preemptions"] == 1
    assert "Engine steps" in text


@pytest.mark.parametrize(("phase", "title"), [("inflight", "inflight_fused_batching"), ("static", "V1")])
def test_of_one_side_alone_nothing_is_judged(report: Any, phase: str, title: str) -> None:
    metrics, text = report({}, (phase,))  # one stack of the lab
    assert f"chat: {title}" in text
    assert metrics["ratios"] == metrics["policies"] == {}
    assert metrics[phase]["chat"]["requests_per_second"] > 0
    lab = next(lab for lab in CATALOG.labs if lab.short == "batching")
    assert {judge_verdict(each, results.flatten(metrics)).word for each in rehearse(lab).verdicts} == {UNMEASURED}


# -- labs 03 and 01 ----------------------------------------------------------------------------------------------------


def left(seconds: dict[str, float], streamed: bool) -> dict[str, Any]:
    """What lab 03's client leaves: one request to each model, which took so long."""
    models, lanes = {}, {}
    for model, took in seconds.items():
        record = RequestRecord("1", model, "a", start=1.0, end=1.0 + took, tokens=0 if streamed else 2)
        record.responses = [(1.5, "b"), (1.0 + took, "c")] if streamed else [(1.0 + took, "bc")]
        models[model] = stats.metrics([record])
        lanes[model] = {"records": [record.to_json()], "steps": []}
    return {"models": models, "lanes": lanes}


def test_without_a_step_log_the_times_are_compared(reported: Report) -> None:
    times = {"llama-python": 4.0, "llama-python-batched": 3.0, "ensemble": 1.0}
    phases = {"default": {**left(times, False), "divergence": [None]}, "streaming": left({"ensemble": 1.0}, True)}
    metrics, _ = reported("03-llama-hf-vs-trtllm", phases, {"prompts": 1, "output_tokens": 4})
    assert metrics["default"]["engine_over_hf"] == pytest.approx(4.0)
    assert metrics["default"]["agreeing"] == 1.0
    assert "engine_over_hf" not in metrics["streaming"]


def test_the_p99_of_a_step_is_one_of_single_steps_and_not_of_each_clients_mean() -> None:
    even = [(0.01 * number, "a") for number in range(1, 101)]
    uneven = [*even[:50], *((at + 0.5, text) for at, text in even[50:])]  # one step took half a second longer
    records = [RequestRecord(str(n), "m", "p", start=0.0, end=times[-1][0]) for n, times in enumerate((even, uneven))]
    for record, times in zip(records, (even, uneven), strict=True):
        record.responses = times
    phase = {
        "strategy": "direct",
        "generator": "onnx",
        "kept": 1.0,
        "mean_batch": 1.0,
        "mean_empty": 0.0,
        "generator_mean_batch": 1.0,
        "metrics": stats.metrics(records),
    }
    names = runpy.run_path(str(report_of("01-sequence-batcher")))
    cells = dict(zip(names["HEADER"], names["row"](phase), strict=True))
    assert cells["step p50 ms"] == cells["p99 ms"] == "10.00", "one of 198 steps"
