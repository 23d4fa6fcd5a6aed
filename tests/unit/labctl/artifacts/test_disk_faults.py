"""Read-only, forbidden and full folders (faults 7, 45): one sentence names the folder and the cause, at any moment."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from lab_errors import lab_error
from machinery import of_its_own

from labbuild.protocol import EngineCompiler
from labctl.artifacts import engines
from labctl.cli import main as command_line
from labctl.labs.run import results_folder
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit import disk
from labkit.disk import atomic_write, replace_dir
from labkit.errors import LabError


def refused(number: int, target: Path, *named: str) -> LabError:
    """What a person reads of an error of the operating system while ``target`` is written."""
    with lab_error("write-failed") as caught, disk.disk_errors(target):
        raise OSError(number, os.strerror(number), *named)
    return caught.value


@pytest.mark.parametrize(
    ("number", "why", "remedy"),
    [
        (errno.ENOSPC, "no space left on that disk (", "free some space there"),
        (errno.EDQUOT, "the disk quota is used up (", "free some space there"),
        (errno.EROFS, "is read-only", "make it writable"),
        (errno.EACCES, "may not write in", "ls -ld"),
        (errno.ENOTDIR, "Not a directory", "ls -ld"),
    ],
)
def test_fault_45_each_refusal_of_a_disk_has_its_own_words(tmp_path: Path, number: int, why: str, remedy: str) -> None:
    error = refused(number, tmp_path / "Results" / "x", str(tmp_path / "Results"))
    assert why in error.why
    assert remedy in error.remedy
    assert ("free" in error.why) == (number in disk.FULL)
    assert "LABS_CACHE" not in error.remedy


def test_fault_45_the_cache_can_go_elsewhere_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    assert "LABS_CACHE" in refused(errno.ENOSPC, tmp_path / "cache" / "weights" / "w").remedy
    assert "LABS_CACHE" not in refused(errno.ENOSPC, tmp_path / ".labs" / "x").remedy


def test_fault_45_small_sizes_are_not_rounded_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda path: 12_000)
    with lab_error("disk-too-full", "36.0 kB", "12.0 kB"):
        disk.need_space(tmp_path / "x", 36_000)


@pytest.mark.parametrize("error", [OSError("not a valid json file"), FileNotFoundError(2, "gone", "/elsewhere/f")])
def test_an_error_that_is_not_about_the_target_is_not_told_as_one_of_its_disk(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(OSError) as caught, replace_dir(tmp_path / "engine"):
        raise error
    assert caught.value is error


def test_a_builder_that_cannot_load_a_model_is_not_told_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(EngineCompiler):
        name, recipe = "broken", "1"
        essential = ()

        def make(self, weights: Path, options: Mapping[str, Any], target: Path, tell: Any, builder: Any) -> Any:
            raise OSError("It looks like the config file at '/data/Model/config.json' is not a valid JSON file.")

    monkeypatch.setitem(engines.ENGINES, "broken", Broken())
    build = engines.request("broken", "shipped:tiny-gpt2", {})
    with lab_error("engine-build-failed", "'/data/Model/config.json'") as caught:
        build.make(Workspace(ROOT, tmp_path / "cache"), lambda text: None)
    assert "free" not in str(caught.value)


def test_fault_45_whatever_a_command_writes_a_refusal_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(argv: object, **_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/proc/x")

    monkeypatch.setattr(command_line.cli, "main", full)
    assert command_line.main([]) == 1
    assert "error: cannot write /proc/x\n  /proc is read-only\n" in capsys.readouterr().err


def test_fault_45_a_measurement_that_fails_leaves_no_results_folder(session: Session) -> None:
    lab = session.catalog.lab("iterative")
    with lab_error("any"), results_folder(session, lab) as folder:
        raise LabError("no", code="any")
    assert not folder.exists()
    with results_folder(session, lab) as folder:
        atomic_write(folder / "result.json", "{}")
    assert folder.exists()


def test_a_deleted_current_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with lab_error("folder-gone"):
        Workspace.find()


# -- on real file systems of the test's own ---

SMALL = """
set -e
mount -t tmpfs -o size=192k none "$LABS_ROOT/.labs"
render() { $AGAIN "$PYTHON" -m labctl render iterative --set max_batch_size="$1"; }
state() { cd "$LABS_ROOT/.labs/iterative/repository" && find . -type f | sort | xargs sha256sum | sha256sum; }
render 4 >/dev/null
state
head -c 1M /dev/zero >"$LABS_ROOT/.labs/filler" 2>/dev/null || true
render 5 && exit 99
state
find "$LABS_ROOT/.labs" -name '.*-*' | wc -l
"""


READ_ONLY = """
set -e
mount --bind "$LABS_ROOT/results" "$LABS_ROOT/results"
mount -o remount,ro,bind "$LABS_ROOT/results"
"$PYTHON" -m labctl "$@" iterative --runtime local --ports auto
"""


@pytest.fixture
def unshare() -> list[str]:
    """The command that gives a test mounts of its own."""
    command = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount (unshare --mount)")
    return command


def checkout(folder: Path) -> dict[str, str]:
    """A checkout in that folder, and the environment of a labctl that works on it."""
    root = of_its_own(folder).root
    for name in (".labs", "results"):
        (root / name).mkdir()
    # Root of a user's own namespace is not root: there is nobody there whom files could be given to.
    again = f"unshare --user --map-user={os.getuid()} --map-group={os.getgid()}" if os.getuid() else ""
    return {**os.environ, "LABS_ROOT": str(root), "PYTHON": sys.executable, "AGAIN": again}


def test_fault_7_a_full_disk_leaves_the_old_repository_and_is_told_in_words(unshare: list[str], tmp_path: Path) -> None:
    env = checkout(tmp_path)
    done = subprocess.run([*unshare, "bash", "-c", SMALL], env=env, capture_output=True, text=True, check=False)
    before, after, left = done.stdout.splitlines()
    assert before == after
    assert left == "0"
    assert "no space left" in done.stderr
    assert f"{env['LABS_ROOT']}/.labs" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["run", "bench"])
def test_fault_45_read_only_results_are_told_before_anything_is_started(
    unshare: list[str], tmp_path: Path, command: str
) -> None:
    env = checkout(tmp_path)
    done = subprocess.run(
        [*unshare, "bash", "-c", READ_ONLY, "bash", command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"error: cannot write {env['LABS_ROOT']}/results" in done.stderr
    assert f"{env['LABS_ROOT']}/results is read-only" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(Path(env["LABS_ROOT"], ".labs").glob("*/state.json"))


def test_fault_7_where_no_temporary_folder_can_be_written_that_is_said() -> None:
    limited = 'ulimit -f 0; exec "$0" -m labctl exercise verify 02a --runtime local'  # no file can have a byte
    done = subprocess.run(["bash", "-c", limited, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: no temporary folder can be written" in done.stderr
    assert "Traceback" not in done.stderr
