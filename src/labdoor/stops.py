"""Stop strings: a text that grows is cut at the first of them, and no part of one is let through too early."""

from __future__ import annotations

from collections.abc import Sequence


class Scanner:
    """Args: words: the stop strings; they are not part of the answer."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._held = ""
        self.found = False

    def add(self, text: str, last: bool = False) -> str:
        """The text that is certain now. ``found`` is set where a stop string ended it.

        Args:
            last: nothing follows, so nothing is held back.
        """
        if not self._words:
            return text
        whole = self._held + text
        ends = [(place + len(word), place) for word in self._words if (place := whole.find(word)) >= 0]
        if ends:
            self.found, self._held = True, ""
            _, place = min(ends)  # the one that is complete first, however the text came in pieces
            return whole[:place]
        keep = 0 if last else max(self._overlap(whole, word) for word in self._words)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    @staticmethod
    def _overlap(text: str, word: str) -> int:
        """How many characters at the end of ``text`` may begin ``word``."""
        longest = min(len(word) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if text.endswith(word[:n])), 0)
