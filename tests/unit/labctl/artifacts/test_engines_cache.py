"""Engines: built once per key, whole or refused, and nothing that looks like one after a failure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import lab_error

from labbuild.protocol import EngineCompiler, Option
from labctl.artifacts import engines, weights
from labctl.artifacts.store import ENGINES, WEIGHTS
from labctl.cli.main import cli
from labctl.workspace import Workspace

SPEC = "shipped:tiny-gpt2"


class Fake(EngineCompiler):
    """Writes two small files. ``fault`` is raised halfway."""

    name = "fake"
    recipe = "1"
    options: Mapping[str, Option] = {"precision": Option("fp16", ("fp16", "int8")), "size": Option(8, minimum=4)}
    essential = ("*.engine",)

    def __init__(self) -> None:
        self.made: list[Path] = []
        self.fault: BaseException | None = None
        self.files = {"rank0.engine": b"x" * 1000, "config.json": b"{}"}

    def make(
        self, weights: Path, options: Mapping[str, Any], target: Path, tell: Any, builder: Any
    ) -> Mapping[str, Any]:
        self.made.append(weights)
        for name, data in self.files.items():
            (target / name).write_bytes(data)
            if self.fault:
                raise self.fault
        return {"versions": {"fake": "1"}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    engine = Fake()
    monkeypatch.setitem(engines.ENGINES, "fake", engine)
    return engine


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(ROOT, tmp_path / "cache")


def quiet(text: str) -> None:
    pass


def cached_names(workspace: Workspace) -> list[str]:
    return [path.name for path in ENGINES.folder(workspace).iterdir() if path.suffix != ".lock"]


def test_an_engine_is_built_once_and_says_what_it_is_made_of(fake: Fake, workspace: Workspace) -> None:
    build = engines.request("fake", SPEC, {"precision": "int8"})
    assert not build.ready(workspace)
    path = build.make(workspace, quiet)
    build.make(workspace, quiet)
    assert fake.made == [workspace.models / "tiny-gpt2"]
    assert build.ready(workspace)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["options"] == {"precision": "int8", "size": 8}
    assert manifest["weights"] == weights.parse_source(SPEC).identity(workspace)
    assert manifest["files"]["rank0.engine"]["size"] == 1000
    assert manifest["versions"] == {"fake": "1"}


def test_every_input_makes_another_key(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    wishes: list[tuple[str, dict[str, Any]]] = [
        (SPEC, {}),
        (SPEC, {"precision": "int8"}),
        (SPEC, {"size": 5}),
        ("random:gpt2", {}),
        ("hub:a/b@c", {}),
    ]
    keys = {engines.request("fake", spec, options).key for spec, options in wishes}
    monkeypatch.setattr(Fake, "recipe", "2")
    keys.add(engines.request("fake", SPEC, {}).key)
    assert len(keys) == len(wishes) + 1


@pytest.mark.parametrize(
    ("engine", "options", "code", "said"),
    [
        ("nope", {}, "engine-unknown", "openvino"),
        ("fake", {"colour": "red"}, "engine-option-unknown", "precision, size"),
        ("fake", {"precision": "fp4"}, "engine-option-invalid", "fp16, int8"),
        ("fake", {"size": "3"}, "engine-option-invalid", "4"),
        ("fake", {"size": "many"}, "engine-option-invalid", "4"),
    ],
)
def test_a_wrong_wish_is_refused_with_the_good_ones(
    fake: Fake, engine: str, options: dict[str, Any], code: str, said: str
) -> None:
    with lab_error(code, said):
        engines.request(engine, SPEC, options)


def test_a_truncated_engine_is_refused_with_path_and_remedy(fake: Fake, workspace: Workspace) -> None:
    build = engines.request("fake", SPEC, {})
    os.truncate(build.make(workspace, quiet) / "rank0.engine", 10)
    with lab_error("artifact-damaged", "rank0.engine", "10 bytes", "1000", build.key):
        build.ready(workspace)


def test_a_foreign_engine_is_refused(fake: Fake, workspace: Workspace) -> None:
    ours, other = (engines.request("fake", SPEC, {"size": size}) for size in (8, 9))
    ours.make(workspace, quiet).rename(other.locate(workspace))
    with lab_error("engine-other", ours.key) as caught:
        other.ready(workspace)
    ENGINES.prune(workspace, [caught.value.remedy.split()[3].rstrip(",")])
    assert not other.ready(workspace)


def test_changed_weights_make_a_new_engine_in_the_place_of_the_old(fake: Fake, workspace: Workspace) -> None:
    build = engines.request("fake", "random:tiny-gpt2", {})
    path = build.make(workspace, quiet)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"weights": "of before"}))
    assert not build.ready(workspace)
    build.make(workspace, quiet)
    assert len(fake.made) == 2
    assert build.ready(workspace)


def test_an_engine_outlives_its_weights(fake: Fake, workspace: Workspace) -> None:
    build = engines.request("fake", "random:tiny-gpt2", {})
    build.make(workspace, quiet)
    WEIGHTS.prune(workspace)
    assert build.ready(workspace)


def test_a_full_disk_during_a_build_is_told_with_its_space_and_leaves_no_engine(
    fake: Fake, workspace: Workspace
) -> None:
    fake.fault = OSError(28, "No space left")
    build = engines.request("fake", SPEC, {})
    with lab_error("write-failed", "MB free"):
        build.make(workspace, quiet)
    assert cached_names(workspace) == []
    assert not build.ready(workspace)


def test_a_builder_that_makes_no_engine_has_failed(fake: Fake, workspace: Workspace) -> None:
    fake.files = {"rank0.engine": b"", "config.json": b"{}"}
    with lab_error("engine-build-empty"):
        engines.request("fake", SPEC, {}).make(workspace, quiet)
    assert cached_names(workspace) == []


def test_the_command_lists_and_prunes_what_is_cached(
    fake: Fake, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    monkeypatch.setenv("LABS_CACHE", str(workspace.cache))
    build = engines.request("fake", "random:tiny-gpt2", {})
    build.make(workspace, quiet)

    def labctl(*words: str) -> str:
        done = CliRunner().invoke(cli, [*words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert labctl("engines", "list").splitlines()[2].split()[:4] == [
        build.key,
        "random:tiny-gpt2",
        "precision=fp16",
        "size=8",
    ]
    assert labctl("engines", "prune", build.key) == f"removed: {build.key}\n"
    assert labctl("engines", "list") == "nothing is cached\n"
    (row,) = json.loads(labctl("weights", "list", "--json"))
    assert (row["spec"], row["state"]) == ("random:tiny-gpt2", "whole")
    assert labctl("weights", "prune", Path(row["path"]).name) == "removed: random:tiny-gpt2\n"
    assert labctl("weights", "list").startswith("nothing is cached")


def test_the_arguments_that_make_an_engine_name_the_same_engine(fake: Fake) -> None:
    build = engines.request("fake", SPEC, {"size": 9})
    assert build.argv[:6] == ("-m", "labctl.artifacts", "build", "fake", "--weights", SPEC)
    options = dict(text.split("=") for text in build.argv[7::2])
    assert engines.request("fake", SPEC, options).key == build.key


def test_a_stack_with_an_engine_plans_it_after_its_weights(workspace: Workspace) -> None:
    from labctl.catalog import load_catalog
    from labctl.lab import LabSettings, Place, Served
    from labctl.options import Options
    from labctl.plan import make_plan

    lab, name = load_catalog(workspace).stack("iterative")

    def serve(settings: LabSettings, at: Place) -> Served:
        weights, _ = at.weights(SPEC), at.engine("openvino", SPEC, precision="int8")
        return Served(repository=["iterative"], tokenizer=weights)

    lab = replace(lab, serves=[replace(lab.stacks[name], serve=serve)])
    plan = make_plan(workspace, lab, name, Options())
    build = engines.request("openvino", SPEC, {"precision": "int8"})
    assert [artifact.locate(workspace) for artifact in plan.artifacts] == [
        workspace.models / "tiny-gpt2",
        build.locate(workspace),
    ]
    assert plan.artifacts[1] == build
    assert not plan.artifacts[1].ready(workspace)


@pytest.mark.parametrize(
    ("manifest", "code"), [(None, "artifact-damaged"), ("{", "artifact-damaged"), ('{"files": {}}', "engine-other")]
)
def test_the_remedy_of_a_damaged_engine_can_be_followed(
    fake: Fake, workspace: Workspace, manifest: str | None, code: str
) -> None:
    build = engines.request("fake", SPEC, {})
    path = build.make(workspace, quiet) / "manifest.json"
    path.unlink() if manifest is None else path.write_text(manifest)
    with lab_error(code) as caught:
        build.ready(workspace)
    key = caught.value.remedy.removeprefix("labctl engines prune ").partition(",")[0]
    assert [(row["key"], row["engine"]) for row in ENGINES.rows(workspace)] == [(key, "damaged")]
    assert ENGINES.prune(workspace) == [key]
    assert not build.ready(workspace)
