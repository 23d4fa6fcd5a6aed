"""What a long job tells while it works. The steps below the command line speak only through this; ``cli`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Listener:
    """Hears the steps of a job and drops them (``--json``, tests); a subclass shows what it likes.

    All texts are plain, short and without a final full stop.
    """

    def step(self, text: str) -> None:
        """A step begins, and this is what it waits for."""

    def progress(self, text: str) -> None:
        """How far the current step is; replaces the previous progress."""

    def done(self, text: str = "", timed: bool = True) -> None:
        """The current step is finished; ``text`` is its outcome. ``timed``: how long it took is worth telling."""

    def note(self, text: str) -> None:
        """Something a person should know (a choice made for them, a fallback)."""

    def command(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """A command is about to run, with these variables (shown with ``--verbose``)."""


Silent = Listener  # where that is what it is for
