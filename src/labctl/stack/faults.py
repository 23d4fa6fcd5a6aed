"""What went wrong in a model, for the person who edits it: type, message, and the line of a file of theirs.

A client, which may be a stranger's, is told only "internal error in MODEL (see the server's log, entry N)"
(labserve.guard). Here the owner of the log asks.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from labctl import repository
from labctl.clock import Clock
from labctl.runtimes.base import Runtime
from labctl.runtimes.record import Record
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack
from labctl.triton import server_api
from labctl.triton.readiness import LOG_TAIL
from labkit import disk
from labkit.errors import LabError
from labkit.waiting import attempts, call_repeatedly

ENTRY = re.compile(r"internal error in (?P<model>[\w.-]+) \(see the server's log, entry (?P<number>\d+)\)")
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
RAISED = re.compile(r"^(?P<words>[A-Za-z_][\w.]*(: .*)?)$")
SHORT = re.compile(r"(?<![\w/.])(?P<place>[\w-]+/\d+/model\.py)")
MODEL_FILE = re.compile(r"/\d+/[\w-]+\.py:\d+$")

Explain = Callable[[str], str]
FRESH_S = 6.0  # a model rewrites its note every second; the process of an older note has ended
LOOK_S, LOG_S = 0.5, 1.0  # the server may write its log a moment after its client's answer
LOOP = "is there a loop without an end?"
Look = Callable[[], list[str]]
GPU_DEVICE = Path("/dev/nvidiactl")
NO_GPU = re.compile(r"NVML|CudaDriverHelper|pinned system memory|CUDA memory pool|DCGM|no CUDA-capable device")


def stack_explainer(stack: PlannedStack, names: Mapping[str, str] | None = None) -> Explain:
    """A function that puts an error of the stack into the words and the files of the person who edits its models.

    The server's log is read only where an entry of it is named. ``names`` are as of :func:`stack_files`.
    """
    with_own_files = stack_files(stack, names)

    def exception(entry: re.Match[str]) -> str:
        for _ in attempts(LOG_S, 0.05):
            if found := find_exception(whole_log(stack.runtime, stack.name), entry[0]):
                return found
        return entry[0]

    return lambda text: with_own_files(ENTRY.sub(exception, text))


def explain_error(error: LabError, explain: Explain) -> LabError:
    """The same error with everything in it explained."""
    return LabError(
        explain(error.what),
        explain(error.why),
        error.remedy,
        [explain(line) for line in error.details],
        code=error.code,
    )


def find_exception(log: Sequence[str], entry: str) -> str | None:
    """Return the exception of an entry, if the log has it: "KeyError: 'b' (.../iterative-gpt2/1/model.py:31)".

    A model that was loaded again counts from one again: the last entry of that number is meant. The place is the last
    frame in a model's own file, for the fault is rarely in the library that noticed it.
    """
    line = next((line for line in reversed(log) if entry in line), "")
    words: str | None = None
    places = []
    for part in server_api.message(line).splitlines()[1:]:
        if frame := FRAME.match(part):
            places.append(f"{frame['file']}:{frame['line']}")
        elif match := RAISED.match(part):
            words = match["words"]
    own = [place for place in places if MODEL_FILE.search(place)] or places
    return f"{words} ({own[-1]})" if words and own else words


def log_entries(log: Iterable[str]) -> list[str]:
    """Every error entry of the log, once."""
    return list(dict.fromkeys(match[0] for line in log if (match := ENTRY.search(line))))


def stack_files(stack: PlannedStack, names: Mapping[str, str] | None = None) -> Explain:
    """A function that replaces the paths of the rendered repository by those that a person edits.

    ``names``: other names for files, by their path in the repository; else paths below the checkout.
    """
    try:
        request = stack.plan.request
        origins = repository.origins(request)
    except LabError:  # today's templates are gone, or no plan follows from them
        return str
    served = re.compile(re.escape(str(request.output)) + r"/(?P<place>[\w./-]+)")

    def edited_path(match: re.Match[str]) -> str:
        place = match["place"]
        if names and place in names:
            return names[place]
        if place not in origins:
            return match[0]
        path = origins[place]
        checkout = next((folder for folder in path.parents if (folder / "pyproject.toml").is_file()), None)
        return path.relative_to(checkout).as_posix() if checkout else str(path)

    # A syntax error names only the file: "(model.py, line 28)".
    return lambda text: SHORT.sub(edited_path, served.sub(edited_path, text))


def stuck_sentences(run_dir: Path) -> list[str]:
    """One sentence for each model with an execution that takes longer than the labs' models ever do."""
    sentences = []
    for path in sorted(run_dir.glob("stuck-*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            if time.time() - path.lstat().st_mtime < FRESH_S:
                note = disk.read_object(path)
                after = f", after {note['steps']} steps" if note["steps"] else ""
                since = time.strftime("%H:%M:%S", time.localtime(note["since"]))
                sentences.append(
                    f"{note['model']} has not come back from {note.get('what', 'one execution')} since {since} "
                    f"({time.time() - note['since']:.0f} s){after}; "
                    f"it is at {note['file']}:{note['line']}: {LOOP}"
                )
    return sentences


def stuck_check(run_dir: Path, model: str | None = None) -> Look:
    """:func:`stuck_sentences` of that folder, of one model or of all, at each look."""
    begin = f"{model} " if model else ""
    return lambda: [sentence for sentence in stuck_sentences(run_dir) if sentence.startswith(begin)]


def whole_log(runtime: Runtime, stack: str, number: int | None = None) -> list[str]:
    """The log of the stack, or of that replica; [] where there is none."""
    with contextlib.suppress(LabError, OSError):
        return list(runtime.logs(stack, part=number))
    return []


def tail(runtime: Runtime, stack: str, number: int | None = None) -> list[str]:
    """The last lines of that log: the errors, where there are any.

    On a machine without a GPU, Triton's lines about that are left out.
    """
    has_gpu = GPU_DEVICE.exists()
    every = [line for line in whole_log(runtime, stack, number) if has_gpu or not NO_GPU.search(line)]
    errors = [line for line in every if re.match(r"E\d{4} ", line) or "error" in line.lower()]  # E, month, day
    return (errors or every)[-LOG_TAIL:]


def stuck_models(session: Session, stack: str, explain: Explain, number: int | None = None) -> list[str]:
    """What the stack's models, or that replica's, say of executions that do not come back."""
    return [explain(sentence) for sentence in stuck_sentences(session.workspace.folder(stack).run_dir(number))]


def standing_still(session: Session, record: Record) -> str | None:
    """Say that the clock of a stack stands still, and how to let it run; None while it runs."""
    if still := paused_models(session, record):
        return f"The clock of {', '.join(still)} stands still, so no answer comes: labctl clock {record.stack} run"
    return None


def paused_models(session: Session, record: Record) -> list[str]:
    """The models whose clock stands still, on any server of the stack."""
    folder = session.workspace.folder(record.stack)
    folders = [folder.run_dir(record.folder(server.number)) for server in record.servers]
    clocks = [Clock(run_dir, tuple(record.models)) for run_dir in folders]
    return list(dict.fromkeys(model for clock in clocks for model in clock.paused))


def refuse_stuck(stack: RunningStack) -> None:
    """Raise LabError where an execution of the stack does not come back: a measurement of it would have no end."""
    for server in stack.record.servers:
        if stuck := stuck_sentences(stack.folder.run_dir(stack.record.folder(server.number))):
            what = stack_explainer(stack)(stuck[0])
            remedy = f"correct it, then labctl restart {stack.name}"
            raise LabError(what, "nothing is averaged", remedy, code="models-stuck")


def watch_for_stalls(session: Session, stack: str, explain: Explain) -> AbstractContextManager[None]:
    """While a block waits for answers, note once of each model that its execution does not come back."""
    noted: set[str] = set()

    def note_new() -> None:
        for sentence in stuck_models(session, stack, explain):
            model = sentence.partition(" ")[0]
            if model not in noted:
                noted.add(model)
                session.listener.note(f"{sentence} After the edit: labctl restart {stack}")

    return call_repeatedly(note_new, LOOK_S, "stuck")
