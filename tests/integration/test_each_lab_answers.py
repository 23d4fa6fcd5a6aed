"""One real answer from each lab, from the servers of other tests: with the unit tests, what `make test-quick` runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_server import LabServer
from machinery import labctl

from labctl.manifest.catalog import load
from labctl.measure.clients.sequences import SequenceClient
from labctl.workspace import Workspace

SEQUENCES = {
    "strategy": "direct", "generator": "onnx", "sampling": "greedy", "log_verbose": True, "threads": 1,
    "max_sequence_idle_microseconds": 60_000_000,
}  # fmt: skip
TINY = {"model": "random:tiny-llama"}
# lab: (stack, the model that is asked, settings, group of the tests that share the server)
LABS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "sequence": ("sequence-batcher", "", SEQUENCES, "test_lab_sequence"),
    "iterative": ("iterative", "iterative-gpt2", {}, "iterative"),
    "llama": ("llama", "ensemble", TINY, "llama"),
    "codegen": ("codegen", "ensemble", {}, "codegen"),
    "batching": ("inflight-batching", "ensemble", TINY, "llm"),
    "schedulers": ("modern", "door", TINY, "modern"),
    "scale": ("scaled", "streams", {}, "scaled"),
}
PROMPT = "I have lived in"


def test_every_lab_of_the_catalogue_is_asked() -> None:
    assert {lab.short for lab in load(Workspace.find(Path(__file__))).labs} == set(LABS)


@pytest.mark.parametrize(
    "lab", [pytest.param(lab, marks=pytest.mark.xdist_group(row[-1])) for lab, row in LABS.items()]
)
def test_a_lab_answers(lab: str, lab_server: Callable[..., LabServer], checkout: Path) -> None:
    stack, model, settings, _ = LABS[lab]
    server = lab_server(stack, **settings)
    if not model:  # a sequence is not one request
        with SequenceClient(server.http, "ensemble_pipeline", "http", server.settings["correlation_id"]) as client:
            assert client.ask(PROMPT, 7, start=True, end=True)
        return
    said = labctl("infer", stack, "-m", model, "-p", PROMPT, "-o", "4", root=checkout).stdout
    assert said.startswith(PROMPT)
    assert len(said.strip()) > len(PROMPT)
