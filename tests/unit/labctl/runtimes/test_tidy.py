"""What a killed command or server left is gone after the next command; what is in use is never touched."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import eventually

from labctl.artifacts.store import WEIGHTS
from labctl.runtimes import leftovers
from labctl.runtimes.leftovers import RECORD, ROOT, STACK, regions, shm_prefix, tidy
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Endpoints, Proc, Record
from labctl.unfinished import replace_dir
from labctl.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    own = Workspace(tmp_path / "checkout", tmp_path / "cache")
    own.folder("s").path.mkdir(parents=True)
    WEIGHTS.folder(own).mkdir(parents=True)
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


@contextlib.contextmanager
def running(*argv: str | Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process under a name of Triton's, and its session's others; they are ended with the block."""
    process = subprocess.Popen(argv, start_new_session=True, **more)
    try:
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text().startswith("triton"))
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def environment(workspace: Workspace, record: str = "") -> dict[str, str]:
    return {**os.environ, ROOT: str(workspace.root), STACK: "s", RECORD: record}


def record(owner: Proc | None) -> str:
    return Record("s", "lab", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3"), owner=owner).to_json()


def test_fault_36_a_stub_whose_server_is_gone_is_ended_with_its_shared_memory(
    workspace: Workspace, programs: Path
) -> None:
    left = region(workspace, "0")
    argv = (programs / "triton_python_backend_stub", "600")
    with running(*argv, env=environment(workspace)) as stub, running(*argv) as foreign:
        assert len(tidy(workspace)) == 2
        assert stub.wait(60) == -signal.SIGKILL
        assert not left.exists()
        assert foreign.poll() is None


def test_what_ends_while_a_command_changes_its_stack_is_left_to_that_command(
    workspace: Workspace, programs: Path
) -> None:
    region(workspace, "0")
    with running(programs / "triton_python_backend_stub", "600", env=environment(workspace)):
        with stack_lock(workspace, "s", "scale"):
            assert tidy(workspace) == []
        assert len(tidy(workspace)) == 2


@pytest.mark.parametrize("owned", [False, True])
def test_a_server_and_its_stub_stay_unless_they_belong_to_a_command_that_is_dead(
    workspace: Workspace, programs: Path, owned: bool
) -> None:
    used = region(workspace, "0")
    dead = Proc(os.getpid(), 1.0)  # this process's number, another one's start
    script = f"{programs}/triton_python_backend_stub 600 & wait"
    env = environment(workspace, record(dead if owned else None))
    with running(programs / "tritonserver", "-c", script, env=env) as server:
        stub = eventually(lambda: children(server.pid))
        eventually(lambda: Path(f"/proc/{stub}/comm").read_text().startswith("triton"))
        ended = tidy(workspace)
        assert (len(ended), used.exists(), server.poll() is None) == ((3, False, False) if owned else (0, True, True))


@pytest.fixture
def unkillable(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process table with the orphaned server of a dead ``run``, which hangs in a driver: no signal ends it."""
    folder = tmp_path / "proc" / "4194399"  # above what a kernel gives
    folder.mkdir(parents=True)
    (folder / "comm").write_text("tritonserver\n")
    (folder / "stat").write_text("4194399 (tritonserver) D 1 " + "0 " * 40)
    (folder / "status").write_text("State:\tD (disk sleep)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n")
    pairs = {**environment(workspace, record(Proc(os.getpid(), 1.0))), "ODD": "\udcff"}
    (folder / "environ").write_bytes("\0".join(f"{k}={v}" for k, v in pairs.items()).encode(errors="surrogateescape"))
    (folder.parent / "stat").write_text("btime 0\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(folder.parent))
    monkeypatch.setattr(leftovers, "PATIENCE_S", 0.1)
    return folder


def test_fault_48_a_process_that_cannot_be_killed_is_killed_once_and_keeps_no_command(
    workspace: Workspace, unkillable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[int] = []

    def kill(pid: int, number: int) -> None:
        if not number:  # whether it is there
            return
        kills.append(pid)
        status = unkillable / "status"
        status.write_text(status.read_text().replace("SigPnd:\t0000000000000000", "SigPnd:\t0000000000000100"))

    monkeypatch.setattr(os, "kill", kill)
    left = region(workspace, "0")
    assert tidy(workspace) == [str(left)]  # what holds no process goes; the process itself is not told as ended
    assert kills == [int(unkillable.name)]
    monkeypatch.setattr(leftovers, "kill", None)  # the next command neither kills nor waits
    assert tidy(workspace) == []
    assert len(kills) == 1


def test_a_server_that_only_waits_for_its_end_is_not_running(
    workspace: Workspace, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environment(workspace, record(None))
    with running(programs / "tritonserver", "-c", "read line", stdin=subprocess.PIPE, env=env) as server:
        runtime = LocalRuntime(workspace)
        eventually(lambda: runtime.find("s"))
        monkeypatch.setattr(leftovers, "is_unkillable", lambda pid: pid == server.pid)
        assert runtime.find("s") is None
        assert runtime.leftovers("s") == [f"process {server.pid} (tritonserver)"], "down names it all the same"


def children(pid: int) -> int:
    return int((Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or ["0"])[0])


def test_a_folder_that_a_killed_maker_left_is_swept_and_one_in_the_making_is_not(workspace: Workspace) -> None:
    target = WEIGHTS.folder(workspace) / "w"
    code = (
        "import sys, time; from pathlib import Path; from labctl.unfinished import replace_dir\n"
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


def test_what_a_killed_maker_had_moved_aside_comes_back(workspace: Workspace) -> None:
    old = WEIGHTS.folder(workspace) / ".w.old-1"
    old.mkdir()
    (old / "model.safetensors").write_bytes(b"weights")
    tidy(workspace)
    assert (WEIGHTS.folder(workspace) / "w" / "model.safetensors").read_bytes() == b"weights"


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
    with replace_dir(WEIGHTS.folder(workspace) / "w") as fresh:
        (fresh / "file").write_text("there")
    assert (WEIGHTS.folder(workspace) / "w" / "file").read_text() == "there"
    assert len(swept) == 1
