"""The engine of docs/develop/writing-an-engine.md fits the tree, and computes what the scheduler shares out."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from checkout import ROOT
from transformers import LlamaConfig, LlamaForCausalLM

from labctl.manifest import catalog
from labctl.workspace import Workspace
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.policy import Policy
from labsched.request import Request
from labsched.sampling_options import Sampling
from labsched.scheduler import Scheduler

BUDGET, SLOTS = 9, 4


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    for name in ("src/labserve/inflight", "labs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "model_repos").symlink_to(ROOT / "model_repos")
    patch = ROOT / "docs" / "develop" / "example-engine.patch"
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    return tmp_path


def test_the_pages_engine_is_a_setting_of_each_lab_that_has_engines(patched: Path) -> None:
    labs = catalog.load_catalog(Workspace(patched, patched / "unused")).labs  # each combination is checked
    with_it = [lab.number for lab in labs if "engine" in lab.settings and "plain" in lab.settings["engine"].choices]
    assert with_it == ["03", "05", "06", "08"]


def test_the_pages_engine_makes_hugging_faces_tokens_within_the_schedulers_steps(patched: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=199, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(patched / "weights")
    spec = importlib.util.spec_from_file_location("plain", patched / "src/labserve/inflight/plain_engine.py")
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kv, features = KVBudget(12, module.BLOCK_SIZE), Features(max_num_tokens=BUDGET)
    engine = module.PlainEngine(str(patched / "weights"), kv, SLOTS, True, 1, features)
    scheduler = Scheduler(engine, kv, Policy.MAX_UTILIZATION, SLOTS, False, features)
    asked = [Request(str(n), [7 + n] * (3 + 9 * n), 4 + 2 * n, Sampling()) for n in range(6)]
    for request in asked:
        scheduler.submit(request)
    while not scheduler.idle:
        turn = scheduler.step()
        assert sum(turn.computed) <= BUDGET
    for request in asked:
        alone = model.generate(
            torch.tensor([request.prompt]),
            max_new_tokens=request.limit,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert request.output == alone[0, len(request.prompt) :].tolist()
