"""Edited models: they are told from the shipped ones; paths are those that a person edits."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT
from lab_errors import lab_error
from machinery import committed, git
from noting import Noting

from labctl import repository
from labctl.catalog import load_catalog
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes.local import LocalRuntime
from labctl.stack import edits, faults, shipped
from labctl.stack.ports import free_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, record_of
from labctl.workspace import Workspace
from labkit.errors import LabError


@pytest.fixture
def checkout(tmp_path: Path) -> Workspace:
    """A checkout with one shipped file."""
    model = tmp_path / "model_repos" / "r" / "m" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text("shipped\n")
    committed(tmp_path)
    return Workspace(tmp_path, tmp_path / "cache")


def test_the_files_of_a_lab_that_a_person_adds_are_no_edits(checkout: Workspace) -> None:
    shipped_model = checkout.root / "model_repos" / "r" / "m" / "1" / "model.py"
    own = checkout.root / "labs" / "08-till" / "models" / "till" / "1" / "model.py"
    own.parent.mkdir(parents=True)
    own.write_text("mine\n")
    shipped_model.write_text("mine\n")
    assert shipped.edited_files(checkout, [own]) == []
    assert shipped.edited_files(checkout, [own, shipped_model]) == [shipped_model]


def test_templates_outside_of_the_checkout_are_nobodys_edits(checkout: Workspace, tmp_path: Path) -> None:
    inside = checkout.root / "model_repos" / "r" / "m" / "1" / "model.py"
    inside.write_text("mine\n")
    assert shipped.edited_files(checkout, [tmp_path.parent / "elsewhere.py"]) == []
    assert shipped.edited_files(checkout, [tmp_path.parent / "elsewhere.py", inside]) == [inside]


def test_a_checkout_that_knows_nothing_of_what_was_shipped_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("mine")
    with lab_error("shipped-files-unknown"):
        shipped.edited_files(Workspace(tmp_path, tmp_path / "cache"), [path])


def test_fault_50_without_git_what_was_shipped_is_not_known_and_told(
    checkout: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkout.root / "model_repos" / "r" / "m" / "1" / "model.py"
    model.write_text("mine\n")
    monkeypatch.setenv("PATH", str(checkout.root))
    with lab_error("shipped-files-unknown", "No such file"):
        shipped.edited_files(checkout, [model])


def test_an_edit_that_is_committed_is_still_no_shipped_file(tmp_path: Path) -> None:
    upstream, clone = tmp_path / "upstream", tmp_path / "clone"
    model = clone / "m" / "model.py"
    (upstream / "m").mkdir(parents=True)
    (upstream / "m" / "model.py").write_text("shipped\n")
    committed(upstream)
    git(tmp_path, "clone", "-q", str(upstream), str(clone))
    model.write_text("mine\n")
    git(clone, "commit", "-qam", "mine")
    workspace = Workspace(clone, tmp_path / "cache")
    assert shipped.edited_files(workspace, [model]) == [model]


def test_no_shipped_template_leaves_a_parameter_unused() -> None:
    """One that a person edits away is only told; the ones that we ship must use all that their manifests give."""
    workspace = Workspace(ROOT, ROOT / ".cache")
    for lab in load_catalog(workspace).labs:
        for stack in lab.stacks:
            assert repository.unused_parameters(make_plan(workspace, lab, stack, Options()).request) == [], stack


def test_a_reload_names_the_parameters_that_no_template_uses_any_more(tmp_path: Path) -> None:
    listener = Noting()
    session = Session.open(listener)
    lab, stack = session.catalog.stack("iterative")
    plan = make_plan(session.workspace, lab, stack, Options(), tmp_path / "served")
    shutil.copytree(plan.request.sources[0], tmp_path / "templates")
    config = tmp_path / "templates" / "iterative-gpt2" / "config.pbtxt"
    config.write_text(config.read_text().replace("${max_candidate_sequences}", "64"))
    plan = dataclasses.replace(
        plan, request=dataclasses.replace(plan.request, sources=[tmp_path / "templates"], output=tmp_path / "served")
    )
    repository.render_repository(plan.request)
    # Nothing differs from what is served, so nothing is loaded.
    assert edits.load_differing(SimpleNamespace(session=session, plan=plan)) == []  # type: ignore[arg-type]
    assert listener.notes == ["setting max_candidate_sequences has no effect: no template uses it"]


def test_an_ensemble_that_was_edited_is_loaded_after_its_members(tmp_path: Path) -> None:
    """Triton refuses one whose members are as they were: a larger batch must be theirs first."""
    workspace = Workspace(ROOT, tmp_path)
    lab, stack = load_catalog(workspace).stack("codegen")
    plan = make_plan(workspace, lab, stack, Options(), tmp_path / "served")
    repository.render_repository(plan.request)
    for config in (tmp_path / "served").glob("*/config.pbtxt"):
        config.write_text(f"{config.read_text()}# edited\n")
    edited = [*edits.find_edits(SimpleNamespace(plan=plan))]  # type: ignore[arg-type]
    members = set(re.findall(r'model_name: "([^"]+)"', (tmp_path / "served" / "ensemble" / "config.pbtxt").read_text()))
    assert len(members) == 3 and members == {*edited[: edited.index("ensemble")]}


def test_what_is_rendered_for_a_reload_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(ROOT, tmp_path)
    lab, stack = load_catalog(workspace).stack("iterative")
    plan = make_plan(workspace, lab, stack, Options(), tmp_path / "repository")

    def render(request: repository.RenderRequest) -> Any:
        assert request.output.parent.is_dir()
        raise LabError("enough", code="any")

    monkeypatch.setattr(repository, "render_repository", render)
    with lab_error("any"), edits._render_fresh(plan):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "place", "file"),
    [
        ("iterative", "iterative-gpt2/1/model.py", "model_repos/iterative/iterative-gpt2/1/model.py"),
        ("scaled", "waits/1/model.py", "labs/07-scale-out/models/waits/1/model.py"),
    ],
)
def test_tritons_words_name_the_file_that_a_person_edits(tmp_path: Path, name: str, place: str, file: str) -> None:
    workspace = Workspace(ROOT, tmp_path)
    lab, stack = load_catalog(workspace).stack(name)
    plan = make_plan(workspace, lab, stack, Options())
    there: Any = SimpleNamespace(plan=plan, runtime=LocalRuntime(workspace))
    said = f"NameError: name 'x'\n\nAt:\n  {plan.request.output}/{place}(42): execute\n"
    text = faults.stack_files(there)(said)
    assert f"\n  {file}(42)" in text
    assert str(plan.request.output) not in text


@pytest.mark.parametrize(
    ("comes_back", "said"),
    [
        (True, "the version of simple-gpt2 that was loaded before serves on"),
        (False, "simple-gpt2 may be served as it was edited; to be sure: labctl restart iterative"),
    ],
)
def test_a_reload_that_fails_says_which_version_serves(
    session: Session, monkeypatch: pytest.MonkeyPatch, comes_back: bool, said: str
) -> None:
    """One that loads, and then answers with an error."""
    lab, stack = session.catalog.stack("iterative")
    runtime = LocalRuntime(session.workspace)
    record = record_of(PlannedStack(session, lab, stack, runtime, Options()), free_endpoints(1)[0])
    there = RunningStack.of(session, lab, runtime, record)
    repository.render_repository(there.plan.request)
    served = there.plan.request.output / "simple-gpt2" / "config.pbtxt"
    served.write_text(f"{served.read_text()}# as it was loaded\n")
    loads: list[str] = []

    def load(http: str, model: str, patience: float, key: str) -> None:
        loads.append(model)
        if len(loads) > 1 and not comes_back:
            raise LabError("no", code="any")

    def fails(*_: Any) -> None:
        raise LabError("model simple-gpt2 is READY but answers with an error", code="model-error")

    monkeypatch.setattr("labctl.triton.server_api.load_model", load)
    monkeypatch.setattr("labctl.triton.readiness.probe", fails)
    with lab_error("model-error") as caught:
        edits.load_differing(there, ["simple-gpt2"])
    assert [said] == list(caught.value.details)
    assert served.read_text().endswith("# as it was loaded\n")
    assert loads == ["simple-gpt2"] * 2
