"""ONNX and TorchScript: the exported file computes what its weights compute, at any shape, on any device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from lab_errors import lab_error
from transformers import AutoModelForCausalLM

from labbuild.exports import SHAPES, TOLERANCE, Gpt2Export, Onnx, TorchScript
from labctl.artifacts import engines, weights
from labctl.workspace import Workspace
from labserve.batches import pad, split_padded

pytestmark = pytest.mark.night

SPEC = "random:tiny-gpt2"
ENGINES: dict[str, Gpt2Export] = {engine.name: engine for engine in (Onnx(), TorchScript())}


@pytest.fixture(scope="module")
def workspace(cache: Path) -> Workspace:
    return Workspace(ROOT, cache)


@pytest.fixture(scope="module")
def original(workspace: Workspace) -> Any:
    torch.set_num_threads(1)
    path = weights.parse_source(SPEC).make(workspace, print)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=list(ENGINES))
def made(request: pytest.FixtureRequest, workspace: Workspace) -> engines.Build:
    build = engines.request(request.param, SPEC, {})
    build.make(workspace, print)
    return build


def load(build: engines.Build, workspace: Workspace) -> Any:
    return ENGINES[build.engine.name].load(build.locate(workspace) / build.engine.essential[0])


@pytest.mark.parametrize("shape", [(1, 2), (5, 13), (7, 1), (2, 200)])
@torch.inference_mode()
def test_its_logits_are_those_of_the_weights_at_other_shapes_than_it_was_traced_at(
    made: engines.Build, workspace: Workspace, original: Any, shape: tuple[int, int]
) -> None:
    assert shape not in SHAPES
    ids = torch.randint(original.config.vocab_size, shape, generator=torch.Generator().manual_seed(shape[1]))
    torch.testing.assert_close(load(made, workspace)(ids), original(ids).logits, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_texts_of_different_lengths_may_share_a_batch(made: engines.Build, workspace: Workspace, original: Any) -> None:
    blocks = [np.arange(3, 3 + n, dtype=np.int64)[None] for n in (4, 1, 9)]
    together = split_padded(
        load(made, workspace)(torch.from_numpy(pad(blocks))).numpy(), [block.shape for block in blocks]
    )
    for block, found in zip(blocks, together, strict=True):
        np.testing.assert_allclose(found, original(torch.from_numpy(block)).logits.numpy(), atol=1e-4)


def test_the_manifest_tells_how_near_it_came_to_the_original(made: engines.Build, workspace: Workspace) -> None:
    manifest = made.manifest(workspace)
    assert {"1x1", "3x32", "1x256"} <= set(manifest["differences"])
    assert 0 <= manifest["max_abs_difference"] == max(manifest["differences"].values()) < TOLERANCE
    assert manifest["vocab_size"] == 3000
    assert made.ready(workspace)


def test_a_traced_graph_names_no_device(workspace: Workspace) -> None:
    """One that did would fail on a GPU, where the ids are elsewhere than its constants."""
    path = engines.request("torchscript", SPEC, {}).make(workspace, print) / TorchScript.essential[0]
    graph = str(torch.jit.load(path).inlined_graph)
    assert re.findall(r"Device = prim::Constant\[value=\"(\w+)", graph) == []


class Wrong(TorchScript):
    """An exporter that goes wrong on its way: ``spoil`` says how."""

    def __init__(self, spoil: Any) -> None:
        self.spoil = spoil

    def export(self, module: Any, path: Path) -> None:
        path.write_bytes(b"")
        self.module = module

    def load(self, path: Path) -> Any:
        return lambda ids: self.spoil(self.module(ids))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda logits: logits + 0.01,
        lambda logits: logits[:, :1],
        lambda logits: logits * float("nan"),
        lambda logits: logits.flip(0),
    ],
    ids=["a little off", "another shape", "not a number", "rows in another order"],
)
def test_an_export_that_computes_something_else_is_refused(
    workspace: Workspace, original: Any, tmp_path: Path, spoil: Any
) -> None:
    with torch.inference_mode(), lab_error("export-inexact"):
        Wrong(spoil).make(weights.parse_source(SPEC).locate(workspace), {}, tmp_path, print, None)


def test_another_architecture_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    llama = weights.parse_source("random:tiny-llama").make(workspace, print)
    with lab_error("weights-not-gpt2"):
        TorchScript().make(llama, {}, tmp_path, print, None)
