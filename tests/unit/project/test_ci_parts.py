""".ci/run never forgives: a part that fails, hangs, is cut off or never runs is red by name, and so is the run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from checkout import ROOT

FIRST, SECOND = "plan first second\ntrap 'conclude here $? || exit $?' EXIT\npart first 60", "part second 60 true"


def sourced(script: str) -> list[str]:
    return ["bash", "-c", f"set -euo pipefail\n. '{ROOT}/.ci/parts.sh'\n{script}"]


def run(script: str) -> tuple[int, str]:
    ended = subprocess.run(sourced(script), capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr


def row(said: str, name: str) -> str:
    """What the table says of a part, without its time; "" if there is nothing to say."""
    (line,) = [line for line in said.splitlines() if line.startswith(f"{name:34}")]
    return line.partition(" s")[2].strip()


def test_a_run_in_which_each_part_passes_is_green() -> None:
    status, said = run(f"{FIRST} true\n{SECOND}")
    assert (status, row(said, "first"), row(said, "second")) == (0, "", "")
    assert "failed" not in said


@pytest.mark.parametrize(
    ("script", "failed", "first", "second"),
    [
        (f"{FIRST} false || true\n{SECOND}", "first", "exit status 1", ""),
        (f"{FIRST} bash -c 'exit 5' || true\n{SECOND}", "first", "exit status 5", ""),
        (f"{FIRST} false\n{SECOND}", "first, second", "exit status 1", "never ran"),
        (f"{FIRST} true", "second", "", "never ran"),
        (f"{FIRST} true\nexit 0\n{SECOND}", "second", "", "never ran"),
        (
            f"ends=5\n{FIRST} sleep 100 || true\n{SECOND}",
            "first, second",
            "took longer than 5 s",
            "never ran: the run's 5 s",
        ),
        (f"{FIRST} bash -c 'kill -KILL $$' || true\n{SECOND}", "first", "exit status 137", ""),
    ],
    ids=["fails", "no tests", "fails, and ends the run", "forgotten", "the run ends", "hangs", "is killed"],
)
def test_what_is_not_green_is_red_by_name(script: str, failed: str, first: str, second: str) -> None:
    status, said = run(script)
    assert status != 0
    assert f"failed: {failed}\n" in said
    assert row(said, "first") == first
    assert row(said, "second").startswith(second)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_interrupted_names_what_was_cut_off_and_what_never_ran(number: int) -> None:
    command = sourced(f"{FIRST} sh -c 'echo begun; exec sleep 100' || true\n{SECOND}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout and running.stderr
        assert running.stdout.readline() == "begun\n"
        running.send_signal(number)
        said = running.stderr.read()
    assert running.returncode == 128 + number
    assert "failed: first, second\n" in said
    assert (row(said, "first"), row(said, "second")) == ("cut off", "never ran")


STUBS = {  # what .ci/run calls, with less to do; the limit of `make test-alone` is over after two seconds
    "make": f"""
case $1 in
test-together) exec {sys.executable} -m pytest -n 1 --dist loadgroup -q ;;
test-alone) exec sleep 100 ;;
esac""",
    "timeout": """
[ "$1" = --kill-after=60 ] || exec /usr/bin/timeout "$@"
case $* in *test-alone*) set -- "$1" 2 "${@:3}" ;; esac
exec /usr/bin/timeout "$@\"""",
    "df": "printf 'Avail\\n99G\\n'",
    "ldconfig": "echo libpython3.11.so",
    **dict.fromkeys(("apt-get", "git", "chromium", "promtool"), ""),
    "scripts/find_python.sh": f"echo {sys.executable}",
    "scripts/docker_engine.sh": "",
    ".venv/bin/labctl": "",
    ".venv/bin/python": f'case $* in *tests/gpu*) ;; *) exec {sys.executable} "$@" ;; esac',
}
TESTS = """
from pathlib import Path

def test_of_a_race():
    before = Path("before")
    before.touch() if (first := not before.exists()) else None
    assert not first

def test_that_fails():
    assert False

def test_that_passes():
    pass
"""


def test_a_run_with_a_failing_test_and_a_part_that_hangs_is_red_and_says_both(tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for name, lines in STUBS.items():
        path = tmp_path / (name if "/" in name else f"programs/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{lines}\n")
        path.chmod(0o755)
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(TESTS)
    env = {"PATH": f"{tmp_path}/programs:{os.environ['PATH']}", "LABS_TEST_CACHE": ".", "LABS_DOCKER_DIR": "."}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # starts in a tenth of the time
    ended = subprocess.run(
        [tmp_path / ".ci" / "run"], env=os.environ | env, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode != 0, ended.stderr
    assert "failed: tests, tests (alone)\n" in ended.stderr
    assert row(ended.stderr, "tests") == "exit status 1"
    assert row(ended.stderr, "tests (alone)") == "exit status 124"  # after its limit
    assert "passes alone, a race: test_it.py::test_of_a_race" in ended.stdout
    assert "fails alone as well: test_it.py::test_that_fails" in ended.stdout
    assert "test_that_passes" not in ended.stdout


def test_both_gates_call_the_same_commands() -> None:
    hosted = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    commands = [step.get("run", "") for job in hosted["jobs"].values() for step in job["steps"]]
    ours = (ROOT / ".ci" / "run").read_text()
    for command in (
        "make setup",
        "make lint",
        "make test-together",
        "make test-alone",
        "labctl exercise verify --runtime local",
    ):
        assert command in ours
        assert any(command in each for each in commands), command
