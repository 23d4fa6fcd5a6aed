"""Weights: every source, whole or refused, and each way of not getting them told apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import COMMIT, FakeHub, serve
from labctl import weights
from labctl.errors import LabError
from labctl.weights import random_init
from labctl.weights.shapes import SHAPES
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_thisisasecretthatmustnotshow"
FILES = {
    "config.json": b'{"model_type": "gpt2"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 4096,
    "pytorch_model.bin": b"not wanted beside safetensors",
    "README.md": b"not wanted",
}


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

    def make(shape: str, target: Path, models: Path, report: object, dtype: str) -> None:
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
    def make(shape: str, target: Path, models: Path, report: object, dtype: str) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(random_init, "make", make)
    with pytest.raises(KeyboardInterrupt):
        pull("random:tiny-gpt2", workspace)
    assert not weights.ready(weights.parse("random:tiny-gpt2"), workspace)
    assert [path.name for path in workspace.weights_cache.iterdir() if not path.name.endswith(".lock")] == []


def test_a_full_disk_is_told_with_path_and_space(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(shape: str, target: Path, models: Path, report: object, dtype: str) -> None:
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


def test_a_byte_that_rotted_without_a_trace_is_found_by_verify(workspace: Workspace) -> None:
    made = pull("random:tiny-gpt2", workspace)
    source, file = weights.parse("random:tiny-gpt2"), made.path / "model.safetensors"
    before = file.stat()
    change_last_byte(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.ready(source, workspace)
    with pytest.raises(LabError, match="damaged"):
        weights.verify(source, workspace)


def test_a_garbage_manifest_is_refused_and_can_be_pruned(workspace: Workspace) -> None:
    made = pull("random:tiny-gpt2", workspace)
    (made.path / "weights.json").write_text("{")
    with pytest.raises(LabError, match=r"weights\.json is damaged") as caught:
        weights.ready(weights.parse("random:tiny-gpt2"), workspace)
    assert f"prune {made.path.name}" in caught.value.remedy
    assert weights.prune(workspace) == [made.path.name]


def test_what_a_killed_maker_left_is_swept_by_the_next(workspace: Workspace) -> None:
    path = weights.locate(weights.parse("random:tiny-gpt2"), workspace)
    left = path.with_name(f".{path.name}.new-killed")
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


# -- the hub, through a fake of its HTTP interface, in a process of its own as labctl runs it -----------------------


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub(FILES)


@pytest.fixture
def endpoint(hub: FakeHub) -> Iterator[str]:
    with serve(hub) as where:
        yield where


def fetch(endpoint: str, cache: Path, spec: str = f"hub:org/model@{COMMIT}", **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "labctl.weights", "pull", spec],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "HF_ENDPOINT": endpoint, "LABS_CACHE": str(cache), "HF_HOME": str(cache / "home"),
             "HF_HUB_DISABLE_XET": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5", **env},
    )  # fmt: skip
    assert TOKEN not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_snapshot_is_fetched_with_the_wanted_files_only(endpoint: str, hub: FakeHub, tmp_path: Path) -> None:
    code, out, err = fetch(endpoint, tmp_path, HF_TOKEN=TOKEN)
    assert code == 0, err
    path = Path(json.loads(out)["path"])
    assert sorted(p.name for p in path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "weights.json",
    ]
    assert (path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert json.loads((path / "weights.json").read_text())["revision"] == COMMIT
    assert f"Bearer {TOKEN}" in hub.tokens
    assert not list(tmp_path.glob("weights/.*partial"))


@pytest.mark.parametrize(
    ("fault", "env", "what", "remedy"),
    [
        ("401", {}, "(401)", "set HF_TOKEN"),
        ("401", {"HF_TOKEN": TOKEN}, "the token in use is not valid", "set HF_TOKEN"),
        ("gated", {"HF_TOKEN": TOKEN}, "(403)", "accept them"),
        ("gated-stranger", {}, "accepted its terms, and no token is set", "accept them"),
        ("no-repo", {}, "there is no model org/model", "check the id"),
        ("no-revision", {}, "has no revision", "see the revisions"),
    ],
)
def test_each_refusal_of_the_hub_has_its_own_message(
    endpoint: str, hub: FakeHub, tmp_path: Path, fault: str, env: dict[str, str], what: str, remedy: str
) -> None:
    hub.fault = fault
    code, _, err = fetch(endpoint, tmp_path, **env)
    assert code == 1
    assert what in err
    assert remedy in err
    assert "Traceback" not in err


def test_no_network_is_told_as_such(tmp_path: Path) -> None:
    code, _, err = fetch("http://127.0.0.1:9", tmp_path)
    assert code == 1
    assert "the hub does not answer" in err
    assert "shipped:tiny-gpt2" in err


def test_what_is_cached_works_without_a_network(endpoint: str, tmp_path: Path) -> None:
    assert fetch(endpoint, tmp_path)[0] == 0
    code, out, err = fetch("http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")
    assert code == 0
    assert "offline: the cached copy is used" in err
    assert "path" in json.loads(out)


def test_a_download_that_is_cut_goes_on_where_it_was(endpoint: str, hub: FakeHub, tmp_path: Path) -> None:
    hub.files = FILES | {"model.safetensors": bytes(range(256)) * 100_000}  # more than one chunk of a download
    hub.fault = "cut"
    code, out, err = fetch(endpoint, tmp_path)
    assert code == 0, err
    assert hub.ranges, "it began from the start again"
    assert Path(json.loads(out)["path"], "model.safetensors").read_bytes() == hub.files["model.safetensors"]
