"""Do the unit tests notice what is broken? Mutants by hand, of what must not break: which live?

Each is one change to a copy of the sources. The module's own tests run on it, up to the first that fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from labkit.errors import LabError
from labkit.tables import table

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300  # a mutant whose tests do not end is noticed, too
NOT_COPIED = (".git", ".venv", ".labs", "results", "site")
ADDED = "# mutant: nothing"  # where a statement is taken away

TESTS = {  # quick ones first
    "scheduler": (
        *("test_scheduling_traces.py", "test_llm_scheduler.py", "test_llm_plan.py", "test_llm_order.py"),
        *("test_llm_blocks.py", "test_scheduling.py"),
    ),
    "gate": ("test_vllm_gate.py",),
    "recorder": ("test_recorder.py",),
    "down": ("test_interrupts.py", "test_sweep.py", "test_run_folder.py"),
}


class Mutant(NamedTuple):
    """``old``, which stands once in ``src/FILE``, becomes ``new``."""

    of: str
    name: str
    file: str
    old: str
    new: str


_SCHEDULER, _MEMORY, _ORDER = "labsched/scheduler.py", "labsched/memory.py", "labsched/order.py"
_GATE, _RECORDER, _DOWN = "labserve/vllm/gate.py", "labserve/inflight/recorder.py", "labctl/stack/down.py"
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
        "scheduler", "anybody is preempted", _SCHEDULER, "reversed(self.running)) if one.resumable]", "self.running)]"
    ),
    Mutant("scheduler", "preempts and admits in one step", _SCHEDULER, "        if victims:", "        if False:"),
    Mutant("scheduler", "a plan changes the order", _SCHEDULER, "self.order = self.order.draft()", "pass"),
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
        "labsched/batch.py",
        "self.waiting.appendleft(",
        "self.waiting.append(",
    ),
    Mutant(
        "scheduler",
        "a shared block is written to",
        "labsched/blocks.py",
        "            if last.holders > 1:",
        "            if False:",
    ),
    Mutant("scheduler", "nobody grows more urgent", _ORDER, " - self.overtaken.get(request, 0) // self.PATIENCE", ""),
    Mutant("gate", "a batch has one more", _GATE, "waiting[: self._size]", "waiting[: self._size + 1]"),
    Mutant(
        "gate",
        "a batch is open",
        _GATE,
        "for request in waiting if request.request_id in self._batch]",
        "for request in waiting]",
    ),
    Mutant("gate", "who has ended is a member", _GATE, "{id for id in self._batch if id in here}", "set(self._batch)"),
    Mutant("gate", "closed to its members", _GATE, "return request.request_id not in self._batch", "return True"),
    Mutant("recorder", "idle keeps gauges", _RECORDER, "running=0, waiting=0, kv_blocks_used=0, **", "**"),
    Mutant("recorder", "a step of nobody is not done", _RECORDER, "if step.batch or step.waiting:", "if step.batch:"),
    Mutant(
        "recorder",
        "a failed step is not over",
        _RECORDER,
        '        """The step has failed, and every request has ended."""\n        self._clock.done()',
        '        """The step has failed, and every request has ended."""',
    ),
    Mutant("recorder", "names stay taken", _RECORDER, "self._names.free(request.name)", ADDED),
    Mutant("recorder", "who ended ends again", _RECORDER, "        self._ended = {}\n\n", "\n"),
    Mutant(
        "recorder", "who left by no step is not told", _RECORDER, "        if self._ended:\n", "        if False:\n"
    ),
    Mutant(
        "recorder",
        "victims are newcomers",
        _RECORDER,
        "for request in step.preempted]",
        "for request in step.admitted]",
    ),
    Mutant("recorder", "all get a token", _RECORDER, "produced.get(request.number, 0)", "1"),
    Mutant(
        "recorder", "the last step's batch stays", _RECORDER, "len(step.batch) if running else 0", "len(step.batch)"
    ),
    Mutant("down", "the clock stays stopped", _DOWN, "nofollow.unlink(folder / CONTROL)", "pass"),
    Mutant("down", "a stuck server is asked", _DOWN, "        force = True\n", "        force = False\n"),
    Mutant(
        "down",
        "passwords stay",
        _DOWN,
        "    shutil.rmtree(session.workspace.folder(stack).observe, ignore_errors=True)\n",
        "",
    ),
    Mutant("down", "the state stays", _DOWN, "    session.forget(stack)\n\n\ndef down(", "\n\ndef down("),
    Mutant(
        "down",
        "Ctrl-C leaves it up",
        _DOWN,
        "        take_down(session, runtime, stack, force=True)\n        raise",
        "        raise",
    ),
    Mutant("down", "force is interrupted", _DOWN, "with hold_signals_back():", "with contextlib.nullcontext():"),
    Mutant("down", "unknown stacks stay", _DOWN, "names |= runtime.stacks()", "pass"),
    Mutant("down", "another's stack is swept", _DOWN, "if there and there[1].orphaned():", "if there:"),
]


def run(options: Any) -> dict[str, Any]:
    """How many of the mutants of each module fail a test; the names of those that live.

    Raises LabError: a test fails without a mutant, or a mutant does not fit the sources any more.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for path in ROOT.iterdir():
            if path.name in ("src", "tests"):
                shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.name not in NOT_COPIED:
                (copy / path.name).symlink_to(path)
        for of in TESTS:
            if not _pass(copy, of):
                raise LabError(f"the tests of the {of} fail", "no mutant is there", code="mutants-unjudged")
        lives = [mutant for mutant in MUTANTS if _lives(copy, mutant)]
    made, left = Counter(mutant.of for mutant in MUTANTS), Counter(mutant.of for mutant in lives)
    rows = [(of, made[of], made[of] - left[of]) for of in TESTS]
    whole = ("all", made.total(), made.total() - left.total())
    print(table([*rows, whole], ["mutants of", "made", "fail a test"], right=(1, 2)))
    return {"made": dict(made), "live": [f"{mutant.of}: {mutant.name}" for mutant in lives]}


def _lives(copy: Path, mutant: Mutant) -> bool:
    path = copy / "src" / mutant.file
    before = path.read_text(encoding="utf-8")
    if before.count(mutant.old) != 1:
        why = f"{mutant.file} has {mutant.old!r} {before.count(mutant.old)} times"
        raise LabError(f"the mutant '{mutant.name}' does not fit", why, code="mutants-unjudged")
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        lives = _pass(copy, mutant.of)
    finally:
        path.write_text(before, encoding="utf-8")
    print(f"{mutant.of:10} {mutant.name:40} {'lives' if lives else 'fails a test'}", flush=True)
    return lives


def _pass(copy: Path, of: str) -> bool:
    """Whether the tests of a module pass on the copy's sources."""
    tests = [f"tests/unit/{name}" for name in TESTS[of]]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}  # before the checkout's, which .venv knows
    try:
        done = subprocess.run(
            command, check=False, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1):
        raise LabError("pytest could not run", done.stdout[-500:] + done.stderr[-500:], code="mutants-unjudged")
    return done.returncode == 0
