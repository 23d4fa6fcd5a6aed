"""Each lab's program, run without servers: whatever it opens can be planned and rendered, and its claims are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from lab_errors import lab_error
from lab_programs import rehearse

from labctl.catalog import load_catalog
from labctl.lab import Lab
from labctl.options import Options
from labctl.plan import make_plan
from labctl.repository import origins
from labctl.workspace import Workspace
from labkit.errors import LabError

WORKSPACE = Workspace(ROOT, ROOT / "unused")
LABS = load_catalog(WORKSPACE).labs
ON_CPU_ALONE = ("scale", "disaggregation")  # each of their servers would need a GPU


def engines(lab: Lab) -> list[dict[str, str]]:
    """The settings that choose each engine of a lab."""
    return [{"engine": name} for name in lab.declared["engine"].choices] if "engine" in lab.declared else [{}]


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
@pytest.mark.parametrize("lab", LABS, ids=[lab.short for lab in LABS])
def test_every_stack_is_planned_with_every_choice_or_refused_as_not_served(lab: Lab, profile: str) -> None:
    for stack in lab.serves:
        for engine in engines(lab):
            choices = [{key: value} for key, setting in lab.declared.items() for value in setting.choices]
            for choice in [{}, *choices]:
                try:
                    plan = make_plan(WORKSPACE, lab, stack.name, Options(profile, {**engine, **choice}))
                except LabError as error:
                    assert error.code in ("setting-not-served", "setting-not-on-profile", "settings-unusable")
                    continue
                assert {*plan.served.probes} <= {*plan.served.models}
                assert not stack.bench or stack.bench.model in plan.served.models
                if not choice:
                    plan.files()


def test_a_scheduler_of_ones_own_is_served_beside_model_py_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, ROOT / "unused")
    for name in ("labs", "model_repos"):
        (tmp_path / name).symlink_to(ROOT / name)
    own = tmp_path / "mine.py"
    lab = next(lab for lab in LABS if lab.short == "batching")
    options = Options("cpu", {"scheduler": own.name})
    with lab_error("own-file-missing", own):
        make_plan(workspace, lab, "inflight-batching", options).files()
    own.write_text("# a scheduler")
    plan = make_plan(workspace, lab, "inflight-batching", options)
    assert origins(plan.request)["tensorrt_llm/1/scheduler.py"] == own


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
@pytest.mark.parametrize("lab", LABS, ids=[lab.short for lab in LABS])
def test_a_program_opens_what_can_be_served_and_names_scripts_that_are_there(
    lab: Lab, profile: str, quick: bool
) -> None:
    if profile == "gpu" and lab.short in ON_CPU_ALONE:
        with lab_error("run-not-on-profile"):
            rehearse(lab, profile, quick)
        return
    run = rehearse(lab, profile, quick)
    for stack, settings in run.opened:
        declared = {key: value for key, value in settings.items() if key in lab.declared}
        assert declared == settings
        make_plan(WORKSPACE, lab, stack.name, Options(profile, settings)).files()
    scripts = {*run.reports, *(script for script, _ in run.clients)}
    assert all((ROOT / "labs" / lab.folder / script).is_file() for script in scripts) and len(run.reports) == 1
    phases = [phase for _, phase in run.clients]
    assert len(phases) == len({*phases, "result"}) - 1, "a run writes result.json beside the files of its phases"


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
@pytest.mark.parametrize("lab", LABS, ids=[lab.short for lab in LABS])
def test_a_verdict_has_a_bound_and_a_name_of_its_own(lab: Lab, profile: str) -> None:
    if profile == "gpu" and lab.short in ON_CPU_ALONE:
        return
    verdicts = rehearse(lab, profile).verdicts
    assert verdicts and len({verdict.name for verdict in verdicts}) == len(verdicts)
    for verdict in verdicts:
        assert (verdict.at_least, verdict.at_most) != (None, None)


@pytest.mark.parametrize(
    ("profile", "settings", "phases"),
    [
        ("gpu", {}, ["prefix-off", "prefix-on"]),  # vLLM; the one with a small cache is OpenVINO's
        ("gpu", {"engine": "transformers"}, []),
        ("cpu", {}, ["prefix-off", "prefix-on", "prefix-small"]),
        ("cpu", {"speculation": "draft"}, []),
    ],
)
def test_the_phases_about_shared_beginnings_run_wherever_an_engine_can_share_them(
    profile: str, settings: dict[str, Any], phases: list[str]
) -> None:
    lab = load_catalog(WORKSPACE).lab("schedulers")
    run = rehearse(lab, profile, **settings)
    assert [phase for _, phase in run.clients if phase.startswith("prefix-")] == phases


def test_labs_import_one_module_of_labctl() -> None:
    for path in sorted(Path(ROOT, "labs").glob("*/lab.py")):
        lines = [
            line.split()[1] for line in path.read_text().splitlines() if line.startswith(("from lab", "import lab"))
        ]
        assert {*lines} <= {"labctl.lab", "labs.shared.llm"}, path
