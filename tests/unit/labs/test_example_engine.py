"""The engine of docs/develop/writing-an-engine.md fits the tree. What it computes: test_engine_contract.py."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT

from labctl import catalog
from labctl.workspace import Workspace


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    for name in ("src/labserve/inflight", "labs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "model_repos").symlink_to(ROOT / "model_repos")
    patch = ROOT / "docs" / "develop" / "example-engine.patch"
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    return tmp_path


def test_the_pages_engine_is_a_setting_of_each_lab_that_has_engines(patched: Path) -> None:
    labs = catalog.load_catalog(Workspace(patched, patched / "unused")).labs
    with_it = [lab.number for lab in labs if "engine" in lab.declared and "plain" in lab.declared["engine"].choices]
    assert sorted(with_it) == ["03", "05", "06", "08"]
