"""labctl render --target killercoda|instruqt: what the platforms read is there, for every lab that has exercises."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from exercise_cases import EXERCISES, ROOT

from labctl.learn import scenario
from labctl.listener import Silent
from labctl.manifest.catalog import load
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.errors import LabError

WORKSPACE = Workspace(ROOT, ROOT / ".cache")
SESSION = Session(WORKSPACE, load(WORKSPACE), Silent())
LABS = sorted({one.lab.short for one in EXERCISES})


def rendered(lab: str, target: str, folder: Path) -> Path:
    for action in scenario.render_scenario(SESSION, SESSION.catalog.lab(lab), target, folder).actions:
        action.do(Silent())
    return folder


@pytest.mark.parametrize("lab", LABS)
def test_killercodas_index_names_a_task_and_a_verify_script_for_each_exercise(lab: str, tmp_path: Path) -> None:
    folder = rendered(lab, "killercoda", tmp_path / "made")
    steps = json.loads((folder / "index.json").read_text())["details"]["steps"]
    own = [one for one in EXERCISES if one.lab.short == lab]
    assert [step["title"] for step in steps] == [one.title for one in own]
    for step, one in zip(steps, own, strict=True):
        assert (one.folder / "task.md").read_text().strip() in (folder / step["text"]).read_text()
        verify = (folder / step["verify"]).read_text()
        assert verify.splitlines()[-1].endswith(f"labctl exercise check {one.id} --quiet")


@pytest.mark.parametrize("lab", LABS)
def test_instruqts_track_has_a_challenge_with_its_scripts_for_each_exercise(lab: str, tmp_path: Path) -> None:
    folder = rendered(lab, "instruqt", tmp_path / "made")
    host = yaml.safe_load((folder / "config.yml").read_text())["virtualmachines"][0]["name"]
    challenges = sorted(path for path in folder.iterdir() if (path / "assignment.md").exists())
    own = [one for one in EXERCISES if one.lab.short == lab]
    assert [path.name[3:] for path in challenges] == [one.folder.name for one in own]
    for path in challenges:
        _, head, _ = (path / "assignment.md").read_text().split("---\n", 2)
        assert yaml.safe_load(head)["tabs"][0]["hostname"] == host
        assert {one.name for one in path.iterdir()} == {
            "assignment.md", f"setup-{host}", f"check-{host}", f"solve-{host}"
        }  # fmt: skip


@pytest.mark.parametrize("target", scenario.TARGETS)
def test_every_script_is_bash_without_a_mistake_and_can_be_run(target: str, tmp_path: Path) -> None:
    folder = rendered("iterative", target, tmp_path / "made")
    scripts = [path for path in folder.rglob("*") if path.is_file() and path.read_text().startswith("#!")]
    assert len(scripts) >= 7
    for path in scripts:
        assert path.stat().st_mode & 0o111
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_a_folder_of_somebody_elses_is_not_replaced_and_ones_own_is(tmp_path: Path) -> None:
    folder = rendered("iterative", "killercoda", tmp_path / "made")
    rendered("iterative", "instruqt", folder)
    assert (folder / "track.yml").exists() and not (folder / "index.json").exists()
    (folder / scenario.MARK).unlink()
    with pytest.raises(LabError, match="is not empty"):
        rendered("iterative", "instruqt", folder)
