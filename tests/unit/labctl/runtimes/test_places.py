"""Where a checkout lies (fault 46), and a machine whose Docker engine does not answer (faults 5 and 22)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT
from click.testing import CliRunner, Result
from lab_errors import is_lab_error, lab_error
from machinery import of_its_own

from labctl.cli.main import cli
from labctl.listener import Silent
from labctl.runtimes import images
from labctl.runtimes.base import require_plain_path
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace

STRANGE = ("with space", "quo'te", 'quo"te', "dol$lar", "semi;colon", "and&", "Über", "back\\slash", "co:lon", "a(b)")


def checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir(exist_ok=True)
    root = of_its_own(folder).root
    monkeypatch.setenv("LABS_ROOT", str(root))
    return root


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("name", STRANGE)
def test_fault_46_up_and_doctor_refuse_a_path_that_triton_cannot_serve_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = checkout(tmp_path / name, monkeypatch)
    refused = command("up", "iterative", "--runtime", "local", "--ports", "auto")
    is_lab_error(refused.exception, "path-not-plain", folder)
    assert not list((folder / ".labs").glob("*/state.json"))
    rows = {row["name"]: row for row in json.loads(command("doctor", "--json").stdout)}
    assert rows["runtime local"]["state"] != "ok"
    assert str(folder) in rows["runtime local"]["found"]


@pytest.mark.parametrize("name", STRANGE)
def test_fault_46_setup_refuses_it_before_anything_is_downloaded(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    (folder / "scripts").mkdir(parents=True)
    shutil.copy2(ROOT / "scripts" / "setup.sh", folder / "scripts" / "setup.sh")
    env = {**os.environ, "LABS_CACHE": str(tmp_path)}
    argv = ["bash", str(folder / "scripts" / "setup.sh"), "python-that-is-not-there"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"no server would come up from {folder}" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["scripts"]


def test_fault_46_a_cache_in_such_a_place_is_refused_too(tmp_path: Path) -> None:
    with lab_error("path-not-plain"):
        LocalRuntime(Workspace(ROOT, tmp_path / "my cache")).check("cpu")


@pytest.mark.parametrize("name", ["labs-2.0_x", "a+b,c@d%e=f~g"])
def test_fault_46_a_plain_path_is_taken(tmp_path: Path, name: str) -> None:
    require_plain_path(tmp_path / name)
    script = f"printf %s '{name}' | LC_ALL=C tr -d 'A-Za-z0-9_./+,@%=~-'"
    assert script.rpartition("tr -d ")[2] in (ROOT / "scripts" / "setup.sh").read_text()
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize("words", [["list"], ["render", "iterative"], ["status"]])
def test_fault_5_without_an_engine_what_needs_none_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    checkout(tmp_path, monkeypatch)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    done = command(*words)
    assert done.exit_code == 0, done.output
    assert "iterative" in done.stdout


def test_fault_22_an_image_that_cannot_be_pulled_is_named_with_the_engines_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "docker"
    tool.write_text("#!/bin/sh\necho 'manifest unknown' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with lab_error("image-pull-failed", "registry/x:1", "manifest unknown"):
        images.pull_image(Silent(), "registry/x:1")
