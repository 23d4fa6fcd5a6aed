"""What went wrong in a model, for the person who edits it: type, message, and the line of a file of theirs.

A client is told no more than "internal error in MODEL (see the server's log, entry N)" (labserve.guard): it may be a
stranger's. Here the log is at hand, and its owner is asking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from labctl import repository
from labctl.plan import Plan
from labctl.runtimes.base import Runtime
from labctl.triton import server_log
from labkit.errors import LabError

ENTRY = re.compile(r"internal error in (?P<model>[\w.-]+) \(see the server's log, entry (?P<number>\d+)\)")
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
RAISED = re.compile(r"^(?P<words>[A-Za-z_][\w.]*(: .*)?)$")
SHORT = re.compile(r"(?<![\w/.])(?P<place>[\w-]+/\d+/model\.py)")
MODEL_FILE = re.compile(r"/\d+/[\w-]+\.py:\d+$")

Explain = Callable[[str], str]


def explainer(plan: Plan, runtime: Runtime, log: Callable[[], Iterable[str]],
              names: Mapping[str, str] | None = None) -> Explain:  # fmt: skip
    """A function that tells an error of the stack in the words and the files of the person who edits its models.

    Args:
        log: the server's log, read only where an entry of it is named.
        names: other names for files, by their path in the repository; else paths below the checkout.
    """

    mine = in_your_files(plan, runtime, names)

    def explain(text: str) -> str:
        lines: list[str] = []

        def entry(match: re.Match[str]) -> str:
            lines[:] = lines or log()
            return raised(lines, match[0]) or match[0]

        return mine(ENTRY.sub(entry, text))

    return explain


def explained(error: LabError, explain: Explain) -> LabError:
    """The same error with everything in it explained."""
    details = [explain(line) for line in error.details]
    return LabError(explain(error.what), explain(error.why), error.remedy, details)


def raised(log: Sequence[str], entry: str) -> str:
    """The exception of an entry: "KeyError: 'b' (.../iterative-gpt2/1/model.py:31)"; "" where the log has none such.

    A model that was loaded again counts from one again: the last entry of that number is meant. The place is the last
    frame in a model's own file, for the fault is rarely in the library that noticed it.
    """
    line = next((line for line in reversed(log) if entry in line), "")
    words, places = "", []
    for part in server_log.message(line).splitlines()[1:]:
        if frame := FRAME.match(part):
            places.append(f"{frame['file']}:{frame['line']}")
        elif match := RAISED.match(part):
            words = match["words"]
    own = [place for place in places if MODEL_FILE.search(place)] or places
    return f"{words} ({own[-1]})" if words and own else words


def entries(log: Iterable[str]) -> list[str]:
    """Every entry that the log has, once."""
    return list(dict.fromkeys(match[0] for line in log if (match := ENTRY.search(line))))


def in_your_files(plan: Plan, runtime: Runtime, names: Mapping[str, str] | None = None) -> Explain:
    """A function that replaces the paths of the rendered repository by those that a person edits.

    Args:
        names: as :func:`explainer` takes them.
    """
    try:
        origins = repository.origins(plan.request)
    except LabError:  # templates that are gone
        return lambda text: text
    served = re.compile(re.escape(runtime.server_path(plan.request.output)) + r"/(?P<place>[\w./-]+)")

    def mine(match: re.Match[str]) -> str:
        place = match["place"]
        if names and place in names:
            return names[place]
        if place not in origins:
            return match[0]
        path = origins[place]
        checkout = next((folder for folder in path.parents if (folder / "pyproject.toml").is_file()), None)
        return path.relative_to(checkout).as_posix() if checkout else str(path)

    # A syntax error names only the file: "(model.py, line 28)".
    return lambda text: SHORT.sub(mine, served.sub(mine, text))
