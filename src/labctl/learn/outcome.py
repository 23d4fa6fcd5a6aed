"""What a check finds: expectations with their sentences, and the errors that have a meaning of their own."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import LabError


@dataclass(frozen=True)
class Check:
    """One expectation: in words, what was measured, and what it means where it does not hold.

    ``predicted``: `expected` is what the server did, and `measured` what the learner's file foresaw.
    """

    name: str
    expected: str
    measured: str
    ok: bool
    sentence: str = ""
    predicted: bool = False

    def row(self) -> str:
        """The expectation and what was measured, as a row."""
        words = ("server", "yours") if self.predicted else ("expected", "measured")
        shown = "\n    ".join(self.measured.splitlines())
        return f"{'ok' if self.ok else 'NO'}  {self.name}: {words[0]} {self.expected}, {words[1]} {shown}"


class Explained(LabError):
    """An error for which the check has a sentence of its own."""


class Stuck(LabError):
    """A model did not answer in time."""


class Missing(LabError):
    """A check cannot be made on this machine, whatever the learner has written."""


class TooBusy(LabError):
    """A check cannot be made on this machine now, whatever the learner has written."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "this machine is too busy to judge", why, "check once more, with less running", code="machine-busy"
        )


class Slow(Stuck):
    """A model still answers after several times the time that it has."""
