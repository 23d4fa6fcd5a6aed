"""Lab 05's small KV cache: what its client sends does not fit into it, on either profile, also in a quick run."""

from __future__ import annotations

import runpy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml
from checkout import ROOT
from recordings import SETTINGS

from labsched.recording import Arrival, Recording
from labsched.replay import replay

LAB = ROOT / "labs" / "05-batching-policies"


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("engine", ["openvino", "transformers"])
@pytest.mark.parametrize(("profile", "slots"), [("cpu", 16), ("gpu", 64)])
def test_max_utilization_preempts_with_the_small_cache(profile: str, slots: int, engine: str, quick: bool) -> None:
    phases = yaml.safe_load((LAB / "lab.yaml").read_text(encoding="utf-8"))["run"]["phases"]
    (phase,) = (
        phase
        for phase in phases
        if phase["name"] == "max-utilization"
        and engine in phase["when"].get("engine", [engine])
        and profile in phase["when"].get("profile", [profile])
    )
    tokens = phase["set"]["max_tokens_in_paged_kv_cache"]
    settings = {"max_tokens_in_paged_kv_cache": tokens, "requests": 98, "dataset": "", "engine": engine}
    lab = SimpleNamespace(quick=quick, profile=profile, settings=settings)
    (items,) = runpy.run_path(str(LAB / "client.py"))["workloads"](lab, lambda text: len(text.split())).values()
    arrivals = [
        Arrival(str(number), 0.0, 0, len(item.prompt.split()), item.output_tokens, item.output_tokens, "length")
        for number, item in enumerate(items)
    ]
    words = {**SETTINGS.words, "batch_scheduler_policy": "max_utilization", "max_num_sequences": str(slots)}
    cache = replace(SETTINGS, words=words, blocks=tokens // 32, block_size=32, step_tokens=2048)
    assert sum(len(row.preempted) for row in replay(Recording(cache, arrivals), cache).rows) > 0
