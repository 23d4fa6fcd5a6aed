"""A listener that keeps the notes that it is told."""

from __future__ import annotations

from labctl.listener import Silent


class Noting(Silent):
    """``notes``: what a person would have read, in order."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
