"""What the tests of exercises share: the shipped exercises, and a checkout in which they can be begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkout import ROOT

from labctl.catalog import load_catalog
from labctl.learn.exercise import find_exercises
from labctl.workspace import Workspace

EXERCISES = find_exercises(Workspace(ROOT, ROOT / ".cache"), load_catalog(Workspace(ROOT, ROOT / ".cache")))


def begin_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make ``folder`` a checkout, which labctl takes for its own."""
    for name in ("pyproject.toml", "labs", "model_repos", "src", "requirements", "compose.yaml"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.setenv("LABS_ROOT", str(folder))
    return folder
