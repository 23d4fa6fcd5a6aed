"""Lab 05's small KV cache: what its client sends does not fit into it, on either profile, also in a quick run."""

from __future__ import annotations

import runpy
from dataclasses import replace
from types import SimpleNamespace

import pytest
from checkout import ROOT
from lab_programs import rehearse
from recordings import SETTINGS

from labctl.catalog import load_catalog
from labctl.workspace import Workspace
from labsched.replay.player import replay
from labsched.replay.recording import Arrival, Recording

POLICY = "max_utilization"
LAB = ROOT / "labs" / "05-batching-policies"


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("engine", ["openvino", "transformers"])
@pytest.mark.parametrize(("profile", "slots"), [("cpu", 16), ("gpu", 64)])
def test_max_utilization_preempts_with_the_small_cache(profile: str, slots: int, engine: str, quick: bool) -> None:
    if (profile, engine) == ("gpu", "openvino"):
        engine = "transformers"  # OpenVINO is not served there
    run = rehearse(load_catalog(Workspace(ROOT, ROOT / "unused")).lab("batching"), profile, engine=engine)
    ((_, set_by_phase),) = (opened for opened in run.opened if opened[1].get("batch_scheduler_policy") == POLICY)
    tokens = set_by_phase["max_tokens_in_paged_kv_cache"]
    settings = {"max_tokens_in_paged_kv_cache": tokens, "requests": 98, "dataset": "", "engine": engine}
    lab = SimpleNamespace(quick=quick, profile=profile, settings=settings)
    (items,) = runpy.run_path(str(LAB / "client.py"))["workloads"](lab, lambda text: len(text.split())).values()
    arrivals = [
        Arrival(str(number), 0.0, 0, len(item.prompt.split()), item.output_tokens, item.output_tokens, "length")
        for number, item in enumerate(items)
    ]
    words = {**SETTINGS.words, "batch_scheduler_policy": "max_utilization", "max_num_sequences": str(slots)}
    cache = replace(SETTINGS, words=words, blocks=tokens // 32, block_size=32, step_tokens=2048)
    assert sum(len(row.evicted) for row in replay(Recording(cache, arrivals), cache).steps) > 0
