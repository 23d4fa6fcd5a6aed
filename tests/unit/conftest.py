"""What unit tests share: a session of their own, and models with a stand-in for Triton."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkout import ROOT
from model_cases import by_hand, load

from labctl.catalog import load_catalog as load_catalogue
from labctl.listener import Silent
from labctl.stack.session import Session
from labctl.workspace import Workspace

__all__ = ["by_hand", "load"]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session in a folder of its own that has all of this checkout, as links."""
    for name in ("pyproject.toml", "labs", "model_repos", "src", "docker", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    workspace = Workspace(tmp_path, tmp_path / "cache")
    return Session(workspace, load_catalogue(workspace), Silent())
