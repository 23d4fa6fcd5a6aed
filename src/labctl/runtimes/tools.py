"""The steps that make weights and engines, as both runtimes listen to them: progress lines, and perhaps an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labctl.listener import Listener
from labkit.errors import LabError


def progress_of(listener: Listener) -> Callable[[str], None]:
    """What hears a tool's stderr: everything is progress, but for the line by which it hands over its error."""
    return lambda line: None if line.startswith(LabError.MARK) else listener.progress(line)


def tool_failed(argv: Sequence[str], how: str, tail: Sequence[str]) -> LabError:
    """The error of a step that did not end well: its own LabError if it could tell one."""
    for line in tail:
        if line.startswith(LabError.MARK):
            return LabError.from_json(line.removeprefix(LabError.MARK))
    return LabError(f"{' '.join(argv[:2])} failed", how, "", details=tail)
