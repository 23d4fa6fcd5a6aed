"""Weights: every source, whole or refused, and each way of not getting them told apart."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from labctl import weights
from labctl.errors import LabError
from labctl.weights import random_init
from labctl.weights.shapes import SHAPES
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(ROOT, tmp_path / "cache")


def quiet(text: str) -> None:
    pass


def pull(spec: str, workspace: Workspace) -> weights.Weights:
    return weights.pull(weights.parse(spec), workspace, quiet)


@pytest.mark.parametrize(
    ("spec", "kind", "name", "revision"),
    [
        ("hub:org/model@abc123", "hub", "org/model", "abc123"),
        ("hub:gpt2", "hub", "gpt2", ""),
        ("shipped:tiny-gpt2", "shipped", "tiny-gpt2", ""),
        ("random:gpt2", "random", "gpt2", ""),
        ("random:llama-100m@bfloat16", "random", "llama-100m", "bfloat16"),
        ("/some/folder", "local", "/some/folder", ""),
        ("local:/some/folder", "local", "/some/folder", ""),
    ],
)
def test_a_source_is_read(spec: str, kind: str, name: str, revision: str) -> None:
    source = weights.parse(spec)
    assert (source.kind, source.name, source.revision) == (kind, name, revision)


@pytest.mark.parametrize(
    "spec", ["", "hub:", "hub:a b", "hub:a@", "random:nope", "random:gpt2@int3", "ftp://x", "shipped:../x"]
)
def test_what_is_no_source_is_refused(spec: str) -> None:
    if spec == "hub:a@":
        assert weights.parse(spec).revision == ""
        return
    with pytest.raises(LabError):
        weights.parse(spec)


def test_different_sources_have_different_places(workspace: Workspace) -> None:
    specs = ["hub:a/b", "hub:a/b@c", "hub:a-b", "hub:a/b-c", "random:gpt2", "random:tiny-gpt2"]
    assert len({weights.locate(weights.parse(spec), workspace) for spec in specs}) == len(specs)


def test_the_shipped_model_is_whole() -> None:
    assert weights.ready(weights.parse("shipped:tiny-gpt2"), Workspace(ROOT, ROOT))


def test_a_damaged_shipped_model_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("x")
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  a.json\n")
    with pytest.raises(LabError, match=r"a\.json is damaged"):
        weights.ready(weights.parse("shipped:m"), Workspace(tmp_path, tmp_path))


def test_a_local_folder_must_be_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(LabError) as caught:
        weights.ready(weights.parse(str(tmp_path)), Workspace(tmp_path, tmp_path))
    assert caught.value.why == "missing: tokenizer.json, model.safetensors"


def test_random_weights_are_the_same_each_time_and_made_once(workspace: Workspace, tmp_path: Path) -> None:
    first = pull("random:tiny-gpt2", workspace)
    again = pull("random:tiny-gpt2", Workspace(ROOT, tmp_path / "another"))
    assert first.files["model.safetensors"]["sha256"] == again.files["model.safetensors"]["sha256"]
    made = (first.path / "weights.json").stat().st_mtime_ns
    assert pull("random:tiny-gpt2", workspace).path.joinpath("weights.json").stat().st_mtime_ns == made


def test_two_makers_of_one_source_make_it_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(shape: str, target: Path, models: Path, tell: object, dtype: str) -> None:
        made.append(shape)
        (target / "model.safetensors").write_bytes(b"x")

    monkeypatch.setattr(random_init, "make", make)
    threads = [threading.Thread(target=pull, args=("random:tiny-gpt2", workspace)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["tiny-gpt2"]


def test_a_maker_that_dies_leaves_nothing_that_looks_complete(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(shape: str, target: Path, models: Path, tell: object, dtype: str) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(random_init, "make", make)
    with pytest.raises(KeyboardInterrupt):
        pull("random:tiny-gpt2", workspace)
    assert not weights.ready(weights.parse("random:tiny-gpt2"), workspace)
    assert [path.name for path in workspace.weights_cache.iterdir() if not path.name.endswith(".lock")] == []


def test_a_full_disk_is_told_with_path_and_space(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(shape: str, target: Path, models: Path, tell: object, dtype: str) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(random_init, "make", make)
    with pytest.raises(LabError, match="cannot write") as caught:
        pull("random:tiny-gpt2", workspace)
    assert "MB free" in caught.value.why
    assert "LABS_CACHE" in caught.value.remedy


def test_a_truncated_file_is_refused_with_its_path_and_the_remedy(workspace: Workspace) -> None:
    made = pull("random:tiny-gpt2", workspace)
    with (made.path / "model.safetensors").open("r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(LabError, match=r"model\.safetensors is damaged") as caught:
        weights.ready(weights.parse("random:tiny-gpt2"), workspace)
    assert "labctl weights prune random:tiny-gpt2" in caught.value.remedy


def change_last_byte(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x55")


def test_a_changed_byte_is_found_before_use(workspace: Workspace) -> None:
    made = pull("random:tiny-gpt2", workspace)
    change_last_byte(made.path / "model.safetensors")
    with pytest.raises(LabError, match=r"model\.safetensors is damaged"):
        weights.ready(weights.parse("random:tiny-gpt2"), workspace)


def test_a_garbage_manifest_is_refused_and_can_be_pruned(workspace: Workspace) -> None:
    made = pull("random:tiny-gpt2", workspace)
    (made.path / "weights.json").write_text("{")
    with pytest.raises(LabError, match=r"weights\.json is damaged") as caught:
        weights.ready(weights.parse("random:tiny-gpt2"), workspace)
    assert f"prune {made.path.name}" in caught.value.remedy
    assert weights.prune(workspace) == [made.path.name]


def test_what_a_killed_maker_left_is_swept_by_the_next(workspace: Workspace) -> None:
    path = weights.locate(weights.parse("random:tiny-gpt2"), workspace)
    left = path.with_name(f".{path.name}.new-held-killed")
    left.mkdir(parents=True)
    (left / "model.safetensors").touch()
    assert not weights.ready(weights.parse("random:tiny-gpt2"), workspace)
    pull("random:tiny-gpt2", workspace)
    assert not left.exists()


@pytest.mark.parametrize("spec", ["random:tiny-llama", "random:tiny-llama@bfloat16", "random:tiny-codegen"])
def test_a_random_model_loads_and_its_logits_are_finite(workspace: Workspace, spec: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = pull(spec, workspace).path
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    assert model.dtype == (torch.bfloat16 if spec.endswith("bfloat16") else torch.float32)
    ids = AutoTokenizer.from_pretrained(path)("Hello", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert torch.isfinite(model(ids).logits).all()


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
    (row,) = weights.list_cached(workspace)
    assert row["spec"] == "random:tiny-gpt2"
    assert row["bytes"] > 100_000
    assert weights.prune(workspace, keep=["random:tiny-gpt2"]) == []
    assert weights.prune(workspace) == ["random:tiny-gpt2"]
    assert weights.list_cached(workspace) == []


def test_another_shipped_tokenizer_makes_other_random_weights(tmp_path: Path) -> None:
    folder = tmp_path / "models" / SHAPES["gpt2"]["tokenizer"]
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    here, source = Workspace(tmp_path, tmp_path / "cache"), weights.parse("random:gpt2")
    before = weights.locate(source, here)
    (folder / "tokenizer.json").write_text('{"version": "2.0"}')
    assert weights.locate(source, here) != before
