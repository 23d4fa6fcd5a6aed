"""Load tools of other projects against a real stack: their figures in our result, and nothing of it left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import COSTLY
from lab_server import LabServer
from layer import require_vllm
from machinery import labctl, processes_about

from labctl.labs.load_tools import TOOLS
from labctl.labs.tool import ABSENT, OURS

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("iterative")]


@pytest.mark.parametrize(
    "client", ["vllm-bench", *(pytest.param(name, marks=COSTLY) for name in ("aiperf", "guidellm"))]
)
def test_a_tool_measures_a_stack_that_is_up_and_its_door_goes_with_it(
    client: str, lab_server: Callable[..., LabServer], checkout: Path, cache: Path, tmp_path: Path
) -> None:
    if client == "vllm-bench":
        require_vllm(cache)
    lab_server("iterative")
    load = ("--concurrency", "2", "--request-count", "4", "--output-tokens", "8", "--output", str(tmp_path / "r.json"))
    said = labctl("bench", "iterative", "--client", client, *load, root=checkout, timeout=900).stdout
    found = json.loads((tmp_path / "r.json").read_text())
    (figures,) = found["metrics"].values()
    absent = {OURS[column] for column, (name, _) in TOOLS[client].names.items() if name == ABSENT}
    assert set(OURS.values()) - {"goodput"} - absent <= set(figures)
    assert figures["output_token_throughput"] / figures["request_throughput"] == pytest.approx(
        8, rel=0.2
    )  # AIPerf counts again
    assert found["settings"]["client"] == client and f"here        {client}" in said
    assert not [line for line in processes_about(checkout) if "labdoor" in line]
