"""`--set pace=h100`: a server whose steps take the time that a model of a GPU gives them, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machinery import labctl

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("llm")]


def test_steps_last_as_long_as_the_model_of_a_gpu_says_and_the_result_says_so(own: Path) -> None:
    paced = ("--set", "pace=h100", "--set", "pace_slower=20", "--set", "model=random:tiny-llama")
    load = ("--concurrency", "4", "--request-count", "8", "--output-tokens", "8")
    done = labctl("bench", "inflight-batching", *paced, *load, "--runtime", "local", "--ports", "auto", root=own)
    assert "those of a model of a GPU" in done.stdout
    (result,) = (own / "results").glob("05-*/*")
    assert "## A model of a GPU" in (result / "report.md").read_text()
    settings = json.loads((result / "result.json").read_text())["settings"]
    assert (settings["pace"], settings["pace_shape"], settings["pace_slower"]) == ("h100", "llama-2-7b", 20)
    (log,) = result.glob("steps-*.jsonl")
    steps = [step for step in map(json.loads, log.read_text().splitlines()) if step["kind"] == "step"]
    assert steps and all(step["dur"] * 1e6 >= step["paced_us"] for step in steps)
    weights = 20 * 13.214e9 / 3.35e12 * 1e6  # microseconds that no step of Llama-2-7B can be shorter than
    assert all(step["paced_us"] >= weights for step in steps)
