"""Lab 03 whole: Hugging Face's two models and the engine on one server, in three phases, and the report."""

from __future__ import annotations

import json
from pathlib import Path

from machinery import labctl


def test_the_whole_lab_runs_its_exact_answers_agree_and_every_model_is_drawn(own: Path) -> None:
    labctl(
        "run",
        "llama",
        "--quick",
        "--runtime",
        "local",
        "--ports",
        "auto",
        "--set",
        "model=random:tiny-llama",
        "--output",
        "r.json",
        root=own,
    )
    result = json.loads((own / "r.json").read_text())
    # How much faster the engine is says nothing with a model this small; that its answers are the same does.
    assert "exact-agrees" in {verdict["name"] for verdict in result["verdicts"] if verdict["met"]}
    (out,) = (own / "results" / "03-llama-hf-vs-trtllm").iterdir()
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    lanes = json.loads((out / "default.json").read_text())["lanes"]
    prompts = len(lanes["llama-python"]["records"])
    assert [len(step["ids"]) for step in lanes["llama-python"]["steps"]] == [1] * prompts
    assert sum(len(step["ids"]) for step in lanes["llama-python-batched"]["steps"]) == prompts
    assert lanes["ensemble"]["steps"]
