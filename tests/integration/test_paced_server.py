"""`--set pace=NAME`: a server whose steps take the time that a model of a GPU gives them, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machinery import labctl

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("llm")]


@pytest.mark.parametrize(
    ("device", "least_s"),  # which no step can be shorter than: the weights of Llama-2-7B, or the table's first time
    [
        ({"pace": "h100"}, 13.214e9 / 3.35e12),
        ({"pace": "measured", "pace_table": "step:6,prompts:22,token:0.02,context:0.00016,bend:64"}, 0.006),
    ],
)
def test_steps_last_as_long_as_the_model_of_a_gpu_says_and_the_result_says_so(
    own: Path, device: dict[str, str], least_s: float
) -> None:
    given = {**device, "pace_slower": "20", "model": "random:tiny-llama"}
    paced = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    load = ("--concurrency", "4", "--request-count", "8", "--output-tokens", "8")
    done = labctl("bench", "inflight-batching", *paced, *load, "--runtime", "local", "--ports", "auto", root=own)
    assert "those of a model of a GPU" in done.stdout
    result = max((own / "results").glob("05-*/*"))
    assert "## A model of a GPU" in (result / "report.md").read_text()
    settings = json.loads((result / "result.json").read_text())["settings"]
    assert device.items() <= settings.items() and settings["pace_slower"] == 20
    (log,) = result.glob("steps-*.jsonl")
    steps = [step for step in map(json.loads, log.read_text().splitlines()) if step["kind"] == "step"]
    assert steps and all(step["dur"] * 1e6 >= step["paced_us"] for step in steps)
    assert all(step["paced_us"] >= 20 * least_s * 1e6 for step in steps)
