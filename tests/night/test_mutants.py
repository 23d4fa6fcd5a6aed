"""Do the tests notice broken code? Mutants of the scheduler, the recorder and `down`, each held against their tests.

A mutant is one change to a copy of the sources. The files of tests that are named beside it run on it, with
their tests of the night, up to the first test that fails; a mutant that hangs counts as noticed if pytest names the
test that hangs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from checkout import ROOT

pytestmark = pytest.mark.xdist_group("mutants")
LIMIT_S = 600
HANGS_S = 120  # a test that takes longer is named, and ends the run: as in `make test`
HANGS = "Timeout (0:02:00)!"  # faulthandler's word for it
NOT_COPIED = (".git", ".venv", ".labs", "results", "site")

TESTS = {  # quick ones first
    "scheduler": ("test_scheduling_traces.py", "test_llm_scheduler.py", "test_llm_blocks.py", "test_scheduling.py"),
    "static batching": ("test_vllm_gate.py",),
    "recorder": ("test_recorder.py",),
    "down": ("test_interrupts.py", "test_run_folder.py"),
}


class Mutant(NamedTuple):
    """``old``, which stands once in ``src/FILE``, becomes ``new``."""

    of: str
    name: str
    file: str
    old: str
    new: str


_SCHEDULER, _MEMORY, _ORDER = "labsched/scheduler.py", "labsched/memory.py", "labsched/order.py"
_GATE, _RECORDER, _DOWN = "labsched/vllm/gate.py", "labserve/observe/recorder.py", "labctl/stack/down.py"
_SESSION = "labctl/stack/session.py"
MUTANTS = [
    Mutant("scheduler", "static batches are open", _SCHEDULER, "0 if self.static and self.running else ", ""),
    Mutant(
        "scheduler",
        "a slot too many",
        _SCHEDULER,
        "max_running - len(self.running)",
        "max_running + 1 - len(self.running)",
    ),
    Mutant("scheduler", "no block in reserve", _SCHEDULER, "return len(self.running) if", "return 0 if"),
    Mutant("scheduler", "the oldest is preempted", _SCHEDULER, "self.order.victim(self.running)", "self.running[0]"),
    Mutant(
        "scheduler",
        "any request is preempted",
        _SCHEDULER,
        "reversed(self.running)) if other.resumable]",
        "self.running)]",
    ),
    Mutant("scheduler", "preempts and admits in one step", _SCHEDULER, "        if victims:", "        if False:"),
    Mutant("scheduler", "a plan changes the order", _SCHEDULER, "self.order = self.order.copy()", "pass"),
    Mutant(
        "scheduler", "a prompt may fill no step", _SCHEDULER, "request.tokens > (room :=", "request.tokens >= (room :="
    ),
    Mutant(
        "scheduler", "no room for the next token", _MEMORY, "min(request.tokens + self._next, whole)", "request.tokens"
    ),
    Mutant(
        "scheduler",
        "who is dropped holds no memory",
        _MEMORY,
        "return sum(self.kv.needed(request.tokens) for request in self.leaving) + sum(",
        "return sum(",
    ),
    Mutant(
        "scheduler",
        "the preempted goes to the end",
        _SCHEDULER,
        "self.memory.end(request)\n            self.waiting.appendleft(",
        "self.memory.end(request)\n            self.waiting.append(",
    ),
    Mutant(
        "scheduler",
        "a shared block is written to",
        "labsched/blocks.py",
        "            if last.holders > 1:",
        "            if False:",
    ),
    Mutant(
        "scheduler", "no request grows more urgent", _ORDER, " - self.overtaken.get(request, 0) // self.PATIENCE", ""
    ),
    Mutant("static batching", "a batch has one more", _GATE, "waiting[: self._size]", "waiting[: self._size + 1]"),
    Mutant(
        "static batching",
        "a batch is open",
        _GATE,
        "for request in waiting if request.request_id in self._batch]",
        "for request in waiting]",
    ),
    Mutant(
        "static batching",
        "who has ended is a member",
        _GATE,
        "{id for id in self._batch if id in here}",
        "set(self._batch)",
    ),
    Mutant(
        "static batching", "closed to its members", _GATE, "return request.request_id not in self._batch", "return True"
    ),
    Mutant("recorder", "idle keeps gauges", _RECORDER, "(step.kv_blocks_used or 0) if running else 0", "1"),
    Mutant(
        "recorder",
        "an empty step is not skipped",
        _RECORDER,
        "if not step.batch and not step.waiting:",
        "if not step.batch:",
    ),
    Mutant(
        "recorder",
        "a failed step is not over",
        _RECORDER,
        '        """The step has failed, and every request has ended."""\n        self.clock.done()',
        '        """The step has failed, and every request has ended."""',
    ),
    Mutant("recorder", "names stay taken", _RECORDER, "self._names.free(name)", "pass"),
    Mutant("recorder", "who ended ends again", _RECORDER, "        self._ended = {}\n", ""),
    Mutant(
        "recorder",
        "a request that ends between steps is not logged",
        _RECORDER,
        "        if step.batch or step.ended:\n",
        "        if step.batch:\n",
    ),
    Mutant(
        "recorder",
        "victims are newcomers",
        _RECORDER,
        '"preemptions_total": len(step.evicted)',
        '"preemptions_total": len(step.joined)',
    ),
    Mutant("recorder", "all get a token", "labsched/step.py", "self.made.append(made)", "self.made.append(1)"),
    Mutant(
        "recorder",
        "the last step's batch stays",
        _RECORDER,
        'running = step.more["slots_used"]',
        "running = step.batch",
    ),
    Mutant("down", "the clock stays stopped", _DOWN, "(folder / CONTROL).unlink(missing_ok=True)", "pass"),
    Mutant("down", "a stuck server is asked", _DOWN, "        force = True\n", "        force = False\n"),
    Mutant("down", "the state stays", _DOWN, "    session.forget(stack)\n\n\ndef down(", "\n\ndef down("),
    Mutant(
        "down",
        "Ctrl-C leaves it up",
        _DOWN,
        "        take_down(session, runtime, stack, force=True)\n        raise",
        "        raise",
    ),
    Mutant("down", "force is interrupted", _DOWN, "with hold_signals_back():", "with contextlib.nullcontext():"),
    Mutant("down", "unknown stacks stay", _SESSION, "names | ComposeRuntime(self.workspace).stacks()", "names"),
]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, in which one mutant lives at a time."""
    copy = tmp_path_factory.mktemp("mutants")
    copy_checkout(copy)
    return copy


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.of}: {mutant.name}")
def test_a_mutant_changes_one_place_of_the_sources(mutant: Mutant) -> None:
    assert (ROOT / "src" / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1


@pytest.mark.night
@pytest.mark.parametrize("of", TESTS)
def test_without_a_mutant_its_tests_pass(of: str, copied: Path) -> None:
    done = judge(copied, TESTS[of])
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.night
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.of}: {mutant.name}")
def test_a_mutant_fails_one_of_its_tests(mutant: Mutant, copied: Path) -> None:
    path = copied / "src" / mutant.file
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        done = judge(copied, TESTS[mutant.of])
    finally:
        path.write_text(before, encoding="utf-8")
    assert done.returncode == 1 or HANGS in done.stderr, f"it lives\n{done.stdout[-500:]}{done.stderr[-500:]}"


def copy_checkout(copy: Path) -> None:
    """The checkout, and an environment with this one's packages: processes that tests start have the mutant, too."""
    for path in ROOT.iterdir():
        if path.name in ("src", "tests"):
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name not in NOT_COPIED:
            (copy / path.name).symlink_to(path)
    here, there = Path(sys.prefix), copy / ".venv"
    packages = Path(sysconfig.get_path("purelib"))
    own = there / packages.relative_to(here)
    for folder in (own, there / "bin"):
        folder.mkdir(parents=True)
    for path in packages.iterdir():
        if not path.name.startswith("__editable__"):
            (own / path.name).symlink_to(path)
    (own / "labs.pth").write_text(f"{copy / 'src'}\n", encoding="utf-8")
    (there / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(here / "pyvenv.cfg", there)


def judge(copy: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run these files of ``tests/unit`` on the copy's sources. Raises TimeoutExpired: it hangs, unnamed."""
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    options += ["-o", f"faulthandler_timeout={HANGS_S}"]
    files = [str(next((copy / "tests" / "unit").rglob(name))) for name in tests]
    command = [str(copy / ".venv" / "bin" / "python"), "-m", "pytest", *options, *files]
    return subprocess.run(command, check=False, cwd=copy, capture_output=True, text=True, timeout=LIMIT_S)
