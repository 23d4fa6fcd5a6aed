"""A learner's function, called in a process of its own: an endless loop or a crash ends there."""

from __future__ import annotations

import json
import math
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labctl.contention import Patience
from labctl.learn.outcome import Stuck, TooBusy
from labctl.runtimes import processes
from labctl.stack.faults import LOOP
from labkit.errors import LabError

MEMORY_BYTES = 1 << 30
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
RUNNER = """
import importlib.util, json, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds} + 1))
path, function, arguments = sys.argv[1], sys.argv[2], json.load(sys.stdin)
spec = importlib.util.spec_from_file_location("learner", path)
module = importlib.util.module_from_spec(spec)
out, sys.stdout = sys.stdout, sys.stderr
spec.loader.exec_module(module)
json.dump(getattr(module, function)(*arguments), out)
"""


def call_in_sandbox(path: Path, function: str, arguments: Sequence[Any], patience: Patience) -> Any:
    """``function(*arguments)`` of the file; arguments and result as JSON knows them.

    Raises LabError: it raised, with the learner's own file and line; it took too long or too much memory.
    Raises TooBusy.
    """
    seconds = math.ceil(patience.seconds)  # of processor time, which a loop takes on a busy machine too
    argv = [sys.executable, "-B", "-c", RUNNER.format(memory=MEMORY_BYTES, seconds=seconds), str(path), function]
    name = f"{function} in {path.name}"
    late = LabError(f"{name} has not returned within {patience.seconds:g} s", LOOP, code="answer-unended")
    return _ask(argv, path, patience, name, late, json.dumps(list(arguments)))


def script(path: Path, arguments: Sequence[str], patience: Patience) -> Any:
    """What the learner's script prints, as JSON knows it.

    Raises Stuck: it has not ended in time. Raises LabError: its own last words, with file and line. Raises TooBusy.
    """
    late = Stuck(f"{path.name} has not ended within {patience.seconds:g} s", LOOP, code="answer-unended")
    return _ask([sys.executable, str(path), *arguments], path, patience, path.name, late)


def _ask(argv: Sequence[str], path: Path, patience: Patience, name: str, late: LabError, given: str = "") -> Any:
    ended = processes.run_short(argv, path.parent, patience.left(), given, more=patience.left)
    if ended is None:
        raise TooBusy(late.what) if patience.stretched else late
    code, out, err = ended
    if code == -signal.SIGXCPU:
        raise late
    if code:
        raise LabError(f"{name} failed", own_lines(err, path.parent), code="answer-failed")
    try:
        return json.loads(out)
    except (ValueError, RecursionError) as error:
        raise LabError(f"{name} gave no JSON", repr(out[-200:]), code="answer-no-json") from error


def own_lines(traceback: str, folder: Path) -> str:
    """A traceback cut to the learner's own lines: "model.py, line 12: KeyError: 'x'"."""
    lines = [line for line in traceback.strip().splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it ended without a word"
    own = [m for m in FRAME.finditer(traceback) if Path(m["file"]).parent == folder]
    return f"{Path(own[-1]['file']).name}, line {own[-1]['line']}: {last}" if own else last
