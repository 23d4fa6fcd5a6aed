"""A full disk (fault 7) and a read-only one (fault 45), on real file systems of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machinery import of_its_own

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
