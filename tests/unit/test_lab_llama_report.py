"""Lab 03's report of a run on the LLM API, which writes no step log."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from labkit import results, stats
from labkit.records import RequestRecord

REPORT = Path(__file__).resolve().parents[2] / "labs" / "03-llama-hf-vs-trtllm" / "report.py"


def phase(out: Path, name: str, seconds: dict[str, float], divergence: dict[str, list[int | None]]) -> None:
    """What the client leaves: one request to each model, which took so long."""
    models, lanes = {}, {}
    for model, took in seconds.items():
        record = RequestRecord("1", model, "a", start=1.0, end=1.0 + took)
        record.responses = [(1.5, "b"), (1.0 + took, "c")] if name == "streaming" else [(1.0 + took, "bc")]
        record.tokens = 0 if name == "streaming" else 2
        models[model] = stats.metrics([record])
        lanes[model] = {"records": [record.to_json()], "steps": []}
    results.write_phase(out, name, {"triton": "2.68.0", "models": models, "lanes": lanes, **divergence}, [])
    context = {"lab": "03-llama-hf-vs-trtllm", "settings": {"prompts": 1, "output_tokens": 4}}
    (out / f"context-{name}.json").write_text(json.dumps(context))


def test_without_a_step_log_the_times_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"llama-python": 4.0, "llama-python-batched": 3.0, "ensemble": 1.0}
    phase(tmp_path, "default", times, {"divergence": [None]})
    phase(tmp_path, "streaming", {"ensemble": 1.0}, {})
    monkeypatch.setattr(sys, "argv", [str(REPORT), str(tmp_path)])
    runpy.run_path(str(REPORT), run_name="__main__")
    metrics = results.load_result(tmp_path)["metrics"]
    assert metrics["default"]["engine_over_hf"] == pytest.approx(4.0)
    assert metrics["default"]["agreeing"] == 1.0
    assert "engine_over_hf" not in metrics["streaming"]
