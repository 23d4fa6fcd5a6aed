"""Weights: every source, whole or refused, and each way of not getting them told apart."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import ROOT
from lab_errors import lab_error

from labbuild import random_weights
from labbuild.random_weights import SHAPES
from labctl.artifacts import weights
from labctl.artifacts.store import WEIGHTS
from labctl.workspace import Workspace, key_lock


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(ROOT, tmp_path / "cache")


def pull(spec: str, workspace: Workspace) -> Path:
    return weights.parse_source(spec).make(workspace, lambda text: None)


@pytest.mark.parametrize(
    ("spec", "kind", "name", "revision"),
    [
        ("hub:org/model@abc123", "hub", "org/model", "abc123"),
        ("hub:gpt2", "hub", "gpt2", None),
        ("shipped:tiny-gpt2", "shipped", "tiny-gpt2", None),
        ("random:gpt2", "random", "gpt2", None),
        ("random:llama-100m@bfloat16", "random", "llama-100m", "bfloat16"),
        ("/some/folder", "local", "/some/folder", None),
    ],
)
def test_a_source_is_read(spec: str, kind: str, name: str, revision: str | None) -> None:
    source = weights.parse_source(spec)
    assert (source.kind, source.name, source.revision) == (kind, name, revision)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        *[(spec, "model-source-invalid") for spec in ("", "hub:", "hub:a b", "hub:a/b@", "ftp://x", "shipped:../x")],
        ("random:nope", "random-shape-unknown"),
        ("random:gpt2@int3", "random-dtype-unknown"),
    ],
)
def test_what_is_no_source_is_refused(spec: str, code: str) -> None:
    with lab_error(code):
        weights.parse_source(spec)


def test_different_sources_have_different_places(workspace: Workspace) -> None:
    specs = ["hub:a/b", "hub:a/b@c", "hub:a-b", "hub:a/b-c", "random:gpt2", "random:tiny-gpt2"]
    assert len({weights.parse_source(spec).locate(workspace) for spec in specs}) == len(specs)


def test_a_damaged_shipped_model_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "labs" / "shared" / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("x")
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  a.json\n")
    with lab_error("artifact-damaged", "a.json"):
        weights.parse_source("shipped:m").ready(Workspace(tmp_path, tmp_path))


def test_a_local_folder_must_be_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with lab_error("model-folder-incomplete", "tokenizer.json", "model.safetensors"):
        weights.parse_source(str(tmp_path)).ready(Workspace(tmp_path, tmp_path))


def test_random_weights_are_the_same_each_time_and_made_once(workspace: Workspace, tmp_path: Path) -> None:
    first = pull("random:tiny-gpt2", workspace)
    again = pull("random:tiny-gpt2", Workspace(ROOT, tmp_path / "another"))
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    made = (first / "weights.json").stat().st_mtime_ns
    assert pull("random:tiny-gpt2", workspace).joinpath("weights.json").stat().st_mtime_ns == made


def maker(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> list[str]:
    """The maker writes a file, and fails or not; the shapes that it was asked for."""
    made: list[str] = []

    def make(shape: str, target: Path, models: Path, tell: object, dtype: str) -> None:
        made.append(shape)
        (target / "model.safetensors").write_bytes(b"x")
        if error:
            raise error

    monkeypatch.setattr(random_weights, "make_random_weights", make)
    return made


def test_two_makers_of_one_source_make_it_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    made = maker(monkeypatch, None)
    threads = [threading.Thread(target=pull, args=("random:tiny-gpt2", workspace)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["tiny-gpt2"]


def test_a_maker_that_dies_leaves_nothing_that_looks_complete(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        pull("random:tiny-gpt2", workspace)
    assert not weights.parse_source("random:tiny-gpt2").ready(workspace)
    assert [path.name for path in WEIGHTS.folder(workspace).iterdir() if not path.name.endswith(".lock")] == []


def test_fault_7_a_full_disk_is_told_with_path_and_space(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    maker(monkeypatch, OSError(28, os.strerror(28)))
    with lab_error("write-failed"):
        pull("random:tiny-gpt2", workspace)


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("model.safetensors", lambda content: content[:1000]),
        ("model.safetensors", lambda content: content[:-1] + b"\x55"),
        ("weights.json", lambda content: b"{"),
    ],
    ids=["cut", "a byte", "no manifest"],
)
def test_fault_8_a_damaged_file_is_refused_with_its_path_and_can_be_pruned(
    workspace: Workspace, file: str, harm: Callable[[bytes], bytes]
) -> None:
    made = pull("random:tiny-gpt2", workspace)
    (made / file).write_bytes(harm((made / file).read_bytes()))
    with lab_error("artifact-damaged", made / file, made.name):
        weights.parse_source("random:tiny-gpt2").ready(workspace)
    assert len(WEIGHTS.prune(workspace)) == 1 and not made.exists()


@pytest.mark.parametrize("spec", ["random:tiny-llama", "random:tiny-llama@bfloat16", "random:tiny-codegen"])
def test_a_random_model_loads_and_its_logits_are_finite(workspace: Workspace, spec: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = pull(spec, workspace)
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    assert model.dtype == (torch.bfloat16 if spec.endswith("bfloat16") else torch.float32)
    ids = AutoTokenizer.from_pretrained(path)("Hello", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert torch.isfinite(model(ids).logits).all()


@pytest.mark.parametrize("spec", ["random:tiny-llama@float16", "random:tiny-codegen"])
def test_a_random_models_configuration_has_the_names_of_older_transformers_too(workspace: Workspace, spec: str) -> None:
    """Those of TensorRT-LLM's builders know no ``dtype`` and no ``rope_parameters``."""
    config = json.loads((pull(spec, workspace) / "config.json").read_text())
    assert config["torch_dtype"] == config["dtype"]
    if "rope_parameters" in config:
        assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0


@pytest.mark.parametrize(
    ("shape", "millions"), [("gpt2", 124), ("llama-100m", 103), ("llama-2-7b", 6738), ("codegen-350m", 357)]
)
def test_a_shape_has_the_true_number_of_parameters(shape: str, millions: int) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    recipe = SHAPES[shape]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(recipe["type"], **recipe["config"]))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions


def test_what_is_cached_is_listed_and_pruned(workspace: Workspace) -> None:
    pull("random:tiny-gpt2", workspace)
    (row,) = WEIGHTS.rows(workspace)
    assert row["spec"] == "random:tiny-gpt2"
    assert row["bytes"] > 100_000
    with lab_error("artifact-not-cached", "random:gpt2"):
        WEIGHTS.prune(workspace, ["random:tiny-gpt2", "random:gpt2"])
    assert WEIGHTS.prune(workspace) == ["random:tiny-gpt2"]
    assert WEIGHTS.rows(workspace) == []


def test_another_shipped_tokenizer_makes_other_random_weights(tmp_path: Path) -> None:
    folder = tmp_path / "labs" / "shared" / "models" / SHAPES["gpt2"]["tokenizer"]
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    here, source = Workspace(tmp_path, tmp_path / "cache"), weights.parse_source("random:gpt2")
    before = source.locate(here)
    (folder / "tokenizer.json").write_text('{"version": "2.0"}')
    assert source.locate(here) != before


def test_damaged_weights_and_interrupted_downloads_are_listed_and_pruned(workspace: Workspace) -> None:
    made = pull("random:tiny-gpt2", workspace)
    (made / "weights.json").unlink()
    partial = WEIGHTS.folder(workspace) / ".hub-org--model.partial"
    (partial / "sub").mkdir(parents=True)
    (partial / "sub" / "model.safetensors").write_bytes(bytes(5000))
    (WEIGHTS.folder(workspace) / ".w.new-held-x").mkdir()  # being made just now
    with lab_error("artifact-damaged") as caught:
        weights.parse_source("random:tiny-gpt2").ready(workspace)
    name = caught.value.remedy.removeprefix("labctl weights prune ").partition(",")[0]
    rows = {row["spec"]: row for row in WEIGHTS.rows(workspace)}
    assert {spec: row["state"] for spec, row in rows.items()} == {name: "damaged", "hub-org--model.partial": "partial"}
    assert rows["hub-org--model.partial"]["bytes"] == 5000
    assert WEIGHTS.prune(workspace, [name]) == [name]
    assert not weights.parse_source("random:tiny-gpt2").ready(workspace)
    assert WEIGHTS.prune(workspace) == ["hub-org--model.partial"]
    assert not partial.exists()


def test_a_download_that_goes_on_is_not_pruned(workspace: Workspace) -> None:
    partial = WEIGHTS.folder(workspace) / ".hub-a.partial"
    partial.mkdir(parents=True)
    with key_lock(WEIGHTS.folder(workspace) / "hub-a"), lab_error("artifact-busy"):
        WEIGHTS.prune(workspace)
    assert partial.exists()
