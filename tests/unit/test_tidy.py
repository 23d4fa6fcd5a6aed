"""What a killed command or server left is gone after the next command; what is in use is never touched."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.tidy import tidy
from labctl.runtimes.base import Endpoints, Record
from labctl.runtimes.marks import RECORD, ROOT, STACK, regions, shm_prefix
from labctl.runtimes.proc import Proc
from labctl.workspace import Workspace, replace_dir


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    own = Workspace(tmp_path / "checkout", tmp_path / "cache")
    own.stack_dir("s").mkdir(parents=True)
    own.weights_cache.mkdir(parents=True)
    yield own
    for region in regions(own.root, "s"):
        region.unlink()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Programs under the names of a server and of a stub."""
    for name, real in (("tritonserver", "sh"), ("triton_python_backend_stub", "sleep")):
        shutil.copy(str(shutil.which(real)), tmp_path / name)
    return tmp_path


def region(workspace: Workspace, name: str) -> Path:
    path = Path("/dev/shm") / f"{shm_prefix(workspace.root, 's')}{name}"
    path.write_bytes(b"x")
    return path


def environment(workspace: Workspace, record: str = "") -> dict[str, str]:
    return {**os.environ, ROOT: str(workspace.root), STACK: "s", RECORD: record}


def record(owner: Proc | None) -> str:
    return Record("s", "lab", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3"), owner=owner).to_json()


def test_a_stub_whose_server_is_gone_is_ended_with_its_shared_memory(workspace: Workspace, programs: Path) -> None:
    left = region(workspace, "0")
    stub = subprocess.Popen([programs / "triton_python_backend_stub", "600"], env=environment(workspace))
    foreign = subprocess.Popen([programs / "triton_python_backend_stub", "600"])
    try:
        eventually(lambda: Path(f"/proc/{stub.pid}/comm").read_text().startswith("triton"), 5)
        assert len(tidy(workspace)) == 2
        assert stub.wait(5) == -signal.SIGKILL
        assert not left.exists()
        assert foreign.poll() is None
    finally:
        for process in (stub, foreign):
            process.kill()
            process.wait()


def test_what_ends_while_a_command_changes_its_stack_is_left_to_that_command(
    workspace: Workspace, programs: Path
) -> None:
    left = region(workspace, "0")
    stub = subprocess.Popen([programs / "triton_python_backend_stub", "600"], env=environment(workspace))
    try:
        eventually(lambda: Path(f"/proc/{stub.pid}/comm").read_text().startswith("triton"), 5)
        with stack_lock(workspace, "s", "scale"):
            assert tidy(workspace) == []
        assert len(tidy(workspace)) == 2
    finally:
        stub.kill()
        stub.wait()
        left.unlink(missing_ok=True)


@pytest.mark.parametrize("owned", [False, True])
def test_a_server_and_its_stub_stay_unless_they_belong_to_a_command_that_is_dead(
    workspace: Workspace, programs: Path, owned: bool
) -> None:
    used = region(workspace, "0")
    dead = Proc(os.getpid(), 1.0)  # this process's number, another one's start
    server = subprocess.Popen(
        [programs / "tritonserver", "-c", f"{programs}/triton_python_backend_stub 600 & wait"],
        env=environment(workspace, record(dead if owned else None)), start_new_session=True,
    )  # fmt: skip
    try:
        stub = eventually(lambda: children(server.pid), 5)
        eventually(lambda: Path(f"/proc/{stub}/comm").read_text().startswith("triton"), 5)
        ended = tidy(workspace)
        assert (len(ended), used.exists(), server.poll() is None) == ((3, False, False) if owned else (0, True, True))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def children(pid: int) -> int:
    return int((Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or ["0"])[0])


def test_a_folder_that_a_killed_maker_left_is_swept_and_one_in_the_making_is_not(workspace: Workspace) -> None:
    target = workspace.weights_cache / "w"
    code = (
        "import sys, time; from pathlib import Path; from labctl.workspace import replace_dir\n"
        "with replace_dir(Path(sys.argv[1])) as fresh: print(fresh, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout
        left = Path(maker.stdout.readline().strip())
        assert tidy(workspace) == []
        maker.kill()
    assert left.is_dir()
    assert tidy(workspace) == [str(left)]
    assert not left.exists()


def test_a_folder_whose_name_promises_no_lock_is_left_alone_until_it_is_old(workspace: Workspace) -> None:
    earlier = workspace.weights_cache / ".w.new-abcdefgh"
    earlier.mkdir()
    assert tidy(workspace) == []
    os.utime(earlier, (1, 1))
    assert tidy(workspace) == [str(earlier)]


def test_what_a_killed_maker_had_moved_aside_comes_back(workspace: Workspace) -> None:
    old = workspace.weights_cache / ".w.old-1"
    old.mkdir()
    (old / "model.safetensors").write_bytes(b"weights")
    tidy(workspace)
    assert (workspace.weights_cache / "w" / "model.safetensors").read_bytes() == b"weights"


def test_a_folder_is_made_although_it_is_swept_before_its_maker_holds_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    swept: list[Path] = []

    def late(handle: int, how: int) -> None:
        if not swept:
            swept.append(Path(f"/proc/self/fd/{handle}").readlink())
            swept[0].rmdir()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with replace_dir(workspace.weights_cache / "w") as fresh:
        (fresh / "file").write_text("there")
    assert (workspace.weights_cache / "w" / "file").read_text() == "there"
    assert len(swept) == 1
