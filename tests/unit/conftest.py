"""Unit tests compute with models so small that a second thread only waits for the first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_cases import load

from labctl.listener import Silent
from labctl.manifest.catalog import load as load_catalogue
from labctl.orchestrator.session import Session
from labctl.workspace import Workspace

__all__ = ["load"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch, where a test module has imported it, computes on one thread: the other workers need the other cores."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session in a folder of its own that has all of this checkout, as links."""
    for name in ("pyproject.toml", "labs", "model_repos", "models", "src", "docker", "requirements"):
        (tmp_path / name).symlink_to(Path(__file__).resolve().parents[2] / name)
    workspace = Workspace(tmp_path, tmp_path / "cache")
    return Session(workspace, load_catalogue(workspace), Silent())
