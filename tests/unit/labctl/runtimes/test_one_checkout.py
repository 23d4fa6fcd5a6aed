"""One checkout under several names is one: its stacks, their marks, locks and Compose projects."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_errors import lab_error
from waiting import eventually

from labctl.artifacts import weights
from labctl.catalog import Catalog
from labctl.listener import Silent
from labctl.runtimes import groups
from labctl.runtimes.compose_project import Projects
from labctl.runtimes.local import shm_prefix
from labctl.runtimes.record import Endpoints, Record
from labctl.stack.down import down
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.workspace import Workspace
from labkit.disk import cache_folder

# What leads from a folder back to itself, or to the checkout: each is appended to a name, or taken in its place.
DETOURS = st.lists(st.sampled_from([".", "labs/..", "labs/../model_repos/..", "labs/home", "labs/up/c"]), max_size=4)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout ``c`` with links to itself (``labs/home``), and to the folder above it (``labs/up``)."""
    root = tmp_path / "c"
    for name in ("labs", "model_repos"):
        (root / name).mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "labs" / "home").symlink_to(root)
    (root / "labs" / "up").symlink_to("../..")
    (tmp_path / "link").symlink_to("c")
    return root


@settings(max_examples=60)
@given(start=st.sampled_from(["c", "link"]), detours=DETOURS, below=st.sampled_from(["", "labs", "labs/up/link/labs"]))
def test_a_checkout_has_the_same_marks_under_all_its_names(
    checkout: Path, start: str, detours: list[str], below: str
) -> None:
    spelled = "/".join(filter(None, [str(checkout.parent), start, *detours, below]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABS_ROOT", spelled)
        patch.setenv("LABS_CACHE", f"{spelled}/cache")
        found = Workspace.find()
        assert found.root == checkout
        assert Projects(found).name("s") == Projects(Workspace(checkout, checkout)).name("s")
        assert shm_prefix(found.root, "s") == shm_prefix(checkout, "s")
        assert found.folder("s").lock == checkout / ".labs" / "s" / "lock"
        assert cache_folder() == checkout.joinpath(*filter(None, [below and "labs"]), "cache")
        model = weights.parse_source(f"{spelled}/model")
        assert model == weights.parse_source(str(checkout.joinpath(*filter(None, [below and "labs"]), "model")))


@pytest.fixture
def server(checkout: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that was brought up under the checkout's other name."""
    program = tmp_path / "tritonserver"
    shutil.copy(str(shutil.which("sleep")), program)
    session = opened(tmp_path / "link")
    folder = session.workspace.folder("s")
    folder.run_dir().mkdir(parents=True)
    session.remember(Record("s", "lab", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3")))
    argv, log, ended = [str(program), "600"], folder.log_file(), folder.ended_file()
    with groups.spawn(folder, "server", argv, os.environ, log, folder.run_dir(), True, ended) as process:
        eventually(lambda: RunningStack.find(session, "s"))
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def opened(root: Path) -> Session:
    return Session(Workspace(root, root / "cache"), Catalog(()), Silent())


@pytest.mark.parametrize("name", ["c", "link", "moved"])
def test_down_ends_the_stack_that_was_brought_up_under_another_name(
    tmp_path: Path, server: subprocess.Popen[bytes], name: str
) -> None:
    if name == "moved":  # while the stack runs
        (tmp_path / "c").rename(tmp_path / name)
    session = opened(tmp_path / name)
    assert RunningStack.find(session, "s") is not None
    assert down(session, "s")
    assert server.wait(60) < 0
    assert session.remembered("s") is None


def test_a_copy_of_a_checkout_is_another_one(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    shutil.copytree(tmp_path / "c", tmp_path / "copy", symlinks=True)
    assert RunningStack.find(opened(tmp_path / "copy"), "s") is None
    down(opened(tmp_path / "copy"), "s")
    assert server.poll() is None


@pytest.mark.parametrize("where", ["circle", "f" * 300, "closed/c"])
def test_what_cannot_be_looked_into_is_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.setenv("LABS_ROOT", str(tmp_path / where))
    with lab_error("checkout-missing"):
        Workspace.find()
