"""Does `make test` notice broken code? Hand-written mutants of code that must not break, and which of them survive.

A mutant is one change to a copy of the sources. The test files of `make test` that should notice it run on it, up to
the first test that fails. If all of them pass, every unit test runs. A mutant that hangs counts as noticed if pytest
names the test that hangs, as it does in `make test`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.errors import LabError
from labkit.tables import format_table

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S, WHOLE_S = 600, 1800  # for the files of a mutant, and for all unit tests
HANGS_S = 120  # a test that takes longer is named, and ends the run: as in `make test`
HANGS = "Timeout (0:02:00)!"  # faulthandler's word for it
NOT_COPIED = (".git", ".venv", ".labs", "results", "site")
FAILS, HANGS_NAMED, LIVES, ENDLESS = (
    "fails a test",
    "hangs a test that is named",
    "lives",
    "hangs, and no test is named",
)
ADDED = "# mutant: nothing"  # where a statement is taken away

TESTS = {  # quick ones first
    "scheduler": ("test_scheduling_traces.py", "test_llm_scheduler.py", "test_llm_blocks.py", "test_scheduling.py"),
    "static batching": ("test_vllm_gate.py",),
    "pages": ("test_foreseeable_input.py", "test_watch_page.py"),
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
_PAGES = "labctl/pages/gate.py"
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
    Mutant("pages", "a name that is not ours", _PAGES, "        return False\n", "        return True\n"),
    Mutant("pages", "any address is ours", _PAGES, ").is_loopback", ").is_loopback or True"),
    Mutant("pages", "other pages may call", _PAGES, "if origin is not None and ", "if False and "),
    Mutant(
        "pages",
        "any port of the origin",
        _PAGES,
        "_place(origin) not in (host,",
        '_place(origin).partition(":")[0] not in (host.partition(":")[0],',
    ),
    Mutant(
        "pages",
        "what ends like a name is it",
        _PAGES,
        'forwarded not in (ANY, host.partition(":")[0] or ANY)',
        'not host.partition(":")[0].endswith(forwarded)',
    ),
    Mutant("pages", "a body has no limit", _PAGES, "if len(body) > most:", "if len(body) < 0:"),
    Mutant("recorder", "idle keeps gauges", _RECORDER, "running=0, waiting=0, kv_blocks_used=0, **", "**"),
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
        '        """The step has failed, and every request has ended."""\n        self._clock.done()',
        '        """The step has failed, and every request has ended."""',
    ),
    Mutant("recorder", "names stay taken", _RECORDER, "self._names.free(request.name)", ADDED),
    Mutant("recorder", "who ended ends again", _RECORDER, "            self._ended = {}\n", ""),
    Mutant(
        "recorder",
        "a request that ends between steps is not logged",
        _RECORDER,
        "        if after.ended:\n",
        "        if False:\n",
    ),
    Mutant(
        "recorder",
        "victims are newcomers",
        "labsched/step.py",
        "for request in self.preempted]",
        "for request in self.admitted]",
    ),
    Mutant("recorder", "all get a token", "labsched/step.py", "produced.get(request, 0)", "1"),
    Mutant(
        "recorder",
        "the last step's batch stays",
        _RECORDER,
        "len(step.batch) if after.running else 0",
        "len(step.batch)",
    ),
    Mutant("down", "the clock stays stopped", _DOWN, "(folder / CONTROL).unlink(missing_ok=True)", "pass"),
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
    Mutant("down", "another's stack is swept", _DOWN, "if there and there.record.orphaned():", "if there:"),
]


def run(options: Any) -> dict[str, Any]:
    """How many of the mutants of each module fail a test, and the names of the survivors.

    Raises LabError: a test fails without a mutant, or a mutant does not fit the sources any more.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        _copy(copy)
        for of, tests in TESTS.items():
            if (how := _judge(copy, tests, LIMIT_S)) != LIVES:
                raise LabError(f"without a mutant, a test of {of} {how}", "", code="mutants-unjudged")
        judged = {mutant: _ends(copy, mutant) for mutant in MUTANTS}
    made, left = (Counter(mutant.of for mutant in found) for found in (judged, living(judged)))
    rows = [(of, made[of], made[of] - left[of]) for of in TESTS]
    whole = ("all", made.total(), made.total() - left.total())
    print(format_table([*rows, whole], ["mutants of", "made", "fail a test"], right=(1, 2)))
    return {"made": dict(made), "live": [f"{mutant.of}: {mutant.name}" for mutant in living(judged)]}


def _copy(copy: Path) -> None:
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


def living(judged: Mapping[Mutant, str]) -> list[Mutant]:
    """The mutants that no test notices."""
    return [mutant for mutant, how in judged.items() if how in (LIVES, ENDLESS)]


def _ends(copy: Path, mutant: Mutant) -> str:
    """How a mutant ends."""
    path = copy / "src" / mutant.file
    before = path.read_text(encoding="utf-8")
    if before.count(mutant.old) != 1:
        why = f"{mutant.file} has {mutant.old!r} {before.count(mutant.old)} times"
        raise LabError(f"the mutant '{mutant.name}' does not fit", why, code="mutants-unjudged")
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        how = _judge(copy, TESTS[mutant.of], LIMIT_S)
        if how == LIVES:
            how = _judge(copy, [""], WHOLE_S)
    finally:
        path.write_text(before, encoding="utf-8")
    print(f"{mutant.of:16} {mutant.name:36} {how}", flush=True)
    return how


def _judge(copy: Path, tests: Sequence[str], limit_s: float) -> str:
    """What files of ``tests/unit`` say of the copy's sources; "" is all of them."""
    workers = "0" if all(tests) else "2"
    options = ["-q", "-x", "-n", workers, "-p", "no:cacheprovider", "-m", "not night", "--dist", "loadgroup"]
    options += ["-o", f"faulthandler_timeout={HANGS_S}"]
    command = [
        str(copy / ".venv" / "bin" / "python"),
        "-m",
        "pytest",
        *options,
        *(str(next((copy / "tests" / "unit").rglob(name))) if name else "tests/unit" for name in tests),
    ]
    try:
        done = subprocess.run(command, check=False, cwd=copy, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return ENDLESS
    if done.returncode and HANGS in done.stderr:
        return HANGS_NAMED
    if done.returncode not in (0, 1):
        raise LabError("pytest could not run", done.stdout[-500:] + done.stderr[-500:], code="mutants-unjudged")
    return FAILS if done.returncode else LIVES
