"""Lab 08 whole: the same requests under vLLM's scheduler and under ours, the report and its verdicts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lab_programs import unproven
from layer import require_vllm
from machinery import labctl

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]
PLAIN = [f"steps-{name}.jsonl" for name in ("vllm", "ours")]


def test_the_whole_lab_runs_and_proves_its_verdicts(own: Path, cache: Path) -> None:
    require_vllm(cache)
    asked = ("run", "vllm", "--quick", "--runtime", "local", "--ports", "auto", "--output", "r.json")
    labctl(*asked, root=own)
    result = json.loads((own / "r.json").read_text())
    assert unproven("vllm", result) == []
    assert len(result["verdicts"]) == 7
    (out,) = (own / "results" / "08-vllm").iterdir()
    metrics = result["metrics"]
    assert metrics["trace"]["vllm"]["preempted"] > metrics["trace"]["ours"]["preempted"]
    for name in ("vllm", "ours"):  # the report's figures against the step log's own
        steps = [line for line in lines(out / f"steps-{name}.jsonl") if line["kind"] == "step"]
        evicted = [id for step in steps for id in step.get("evicted", ())]
        trace = {id for label, id in labels(out, name).items() if re.fullmatch(r"r\d", label)}
        assert metrics["trace"][name]["preempted"] == sum(id in trace for id in evicted)
        assert max(sum(step["tokens"]) for step in steps) <= 64
    (parting,) = json.loads(
        labctl("explain", "--diff", *(str(out / name) for name in PLAIN), "--json", root=own).stdout
    )
    assert parting["steps"] == metrics["trace"]["alike"]
    assert any("reserved" in reason for side in parting["sides"] for reason in side["reasons"].values())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def labels(out: Path, phase: str) -> dict[str, str]:
    return {line["label"]: line["id"] for line in lines(out / "requests.jsonl") if line["phase"] == phase}
