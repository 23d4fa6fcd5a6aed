"""Lab 05's report, also of an engine that writes no step log (NVIDIA's): then from the identity test alone."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from labctl.labs.verdicts import UNMEASURED, judge_verdict
from labctl.manifest import catalog
from labctl.workspace import Workspace
from labkit import results
from labkit.records import RequestRecord
from labkit.workloads import identity

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "labs" / "05-batching-policies" / "report.py"
CATALOG = catalog.load_catalog(Workspace(ROOT, ROOT / "unused"))
PHASES = ("static", "inflight", "no-evict", "max-utilization")
COUNTED = {"steps": 20, "mean_batch": 2.0, "max_batch": 3, "max_kv_blocks_used": 4, "kv_blocks": 9, "preemptions": 1}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``report(scheduling)``: what the report makes of all four phases, with that in place of what a log says."""

    def run(scheduling: dict[str, Any], phases: Sequence[str] = PHASES) -> tuple[dict[str, Any], str]:
        records = [
            RequestRecord(
                str(n), "tensorrt_llm", "a text", responses=[(1.0 + n, "")], end=1.0 + n, input_tokens=5, tokens=7
            )
            for n in range(3)
        ]
        for phase in phases:
            workload = {
                "table": identity.identity_metrics(records),
                "scheduling": scheduling,
                "records": [record.to_json() for record in records],
                "steps": [],
            }
            results.write_phase(tmp_path, phase, {"triton": "2.39.0", "workloads": {"chat": workload}}, records)
            context = {"lab": "05-batching-policies", "settings": {}}
            (tmp_path / f"context-{phase}.json").write_text(json.dumps(context))
        monkeypatch.setattr(sys, "argv", [str(REPORT), str(tmp_path)])
        runpy.run_path(str(REPORT), run_name="__main__")
        return results.load_result(tmp_path)["metrics"], (tmp_path / "report.md").read_text()

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
    metrics, text = report({}, (phase,))  # one stack of the lab; and the LLM API has no static side
    assert f"chat: {title}" in text
    assert metrics["ratios"] == metrics["policies"] == {}
    assert metrics[phase]["chat"]["requests_per_second"] > 0
    lab = next(lab for lab in CATALOG.labs if lab.short == "batching")
    assert {judge_verdict(each, results.flatten(metrics)).word for each in lab.verdicts} == {UNMEASURED}
