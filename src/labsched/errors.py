"""The one error that people see, and the two that a request's client sees.

Everything foreseeable that goes wrong is raised as a :class:`LabError` where it is noticed and shown in one place
(``labctl.cli.main``): what happened, why, and the next command to type.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar


class LabError(Exception):
    """A foreseeable fault, explained in plain words.

    Args:
        what: what happened, one sentence, without a final full stop.
        why: the cause as far as it is known (Triton's own message, the exit status, the last log line).
        remedy: the next command to type or the setting to change.
        details: further lines, for example each template problem with file and line, or the last log lines.
        code: the kind of fault in kebab case, one word for programs and tests wherever it is raised ("port-taken").
    """

    MARK: ClassVar[str] = "labctl-error "  # begins the line by which a tool hands its error to labctl

    def __init__(self, what: str, why: str = "", remedy: str = "", details: Sequence[str] = (), *, code: str) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.remedy = remedy
        self.details = tuple(details)
        self.code = code

    def __str__(self) -> str:
        """All of it as plain text, one part a line (the command line adds colour and indentation)."""
        lines = [self.what]
        if self.why:
            lines.append(self.why)
        lines += [f"  {line}" for line in self.details]
        if self.remedy:
            lines.append(f"Try: {self.remedy}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """One line, to be read by :meth:`from_json` in the process that ran a tool."""
        return json.dumps([self.code, self.what, self.why, self.remedy, self.details])

    @classmethod
    def from_json(cls, text: str) -> LabError:
        code, *parts = json.loads(text)
        return cls(*parts, code=code)


class Refusal(ValueError):
    """Why a request is not served, in words that are meant for its client."""


class BadInput(Refusal):
    """A request that cannot be served; the message begins with the name of the input at fault."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
