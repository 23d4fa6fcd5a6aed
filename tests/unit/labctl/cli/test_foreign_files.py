"""Links and foreign files where labctl keeps its own are refused by name, and nothing outside is touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_errors import lab_error

from labctl.runtimes.lock import stack_lock
from labctl.workspace import Workspace
from labkit.errors import LabError


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    own = Workspace(tmp_path / "checkout", tmp_path / "cache")
    own.folder("s").path.mkdir(parents=True)
    return own


def refused(workspace: Workspace) -> LabError:
    with lab_error("path-not-own") as caught, stack_lock(workspace, "s", "up"):
        pass
    return caught.value


FILES = ("lock", "lock.json", "state.json", "server.log", "scale.log", "idle.log", "secret", "purpose.json")


@pytest.mark.parametrize("leads_to", ["file", "folder", "nowhere"])
@pytest.mark.parametrize("name", [*FILES, "run", "repository", "front", "observe"])
def test_fault_37_fault_44_a_link_under_any_name_is_refused_and_its_target_stays(
    workspace: Workspace, tmp_path: Path, name: str, leads_to: str
) -> None:
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "file", tmp_path / "folder" / "diary"):
        file.write_text("mine")
    (workspace.folder("s").path / name).symlink_to(tmp_path / leads_to)
    error = refused(workspace)
    assert str(workspace.folder("s").path / name) in error.what
    assert "it is a link" in error.why
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "diary").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("make", "name"),
    [(os.mkdir, "lock"), (os.mkdir, "server.log"), (os.mkfifo, "state.json"), (os.mkfifo, "scale.log")],
)
def test_fault_44_a_folder_or_a_fifo_in_the_place_of_a_file_is_refused(
    workspace: Workspace, make: Callable[[Path], None], name: str
) -> None:
    make(workspace.folder("s").path / name)
    assert refused(workspace).why in ("it is not a file", "it is not a file or folder")


def test_fault_37_a_stacks_own_folder_that_is_a_link_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    workspace.folder("s").path.rmdir()
    (tmp_path / "elsewhere").mkdir()
    workspace.folder("s").path.symlink_to(tmp_path / "elsewhere")
    assert "it is a link" in refused(workspace).why
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_fault_37_somebody_elses_lock_is_refused(workspace: Workspace) -> None:
    lock = workspace.folder("s").path / "lock"
    lock.write_text("")
    os.chown(lock, 65534, 65534)
    assert refused(workspace).why == "it belongs to another user (65534)"


def test_what_a_stack_writes_is_its_owners_alone(workspace: Workspace) -> None:
    workspace.folder("s").path.chmod(0o755)
    with stack_lock(workspace, "s", "up"):
        assert workspace.folder("s").path.stat().st_mode & 0o077 == 0
