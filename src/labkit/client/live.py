"""A live view of requests in flight: a bar of tokens and the end of the growing text, one line per request."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from labkit.evidence.records import RequestRecord
from labkit.tables import can_redraw
from labsched.printable import printable

BAR = 24
REDRAW_S = 0.08
LINE_S = 5.0  # between two lines in a log that is not a terminal


class LiveView:
    """Draws while responses arrive; on a stream that is not a terminal it prints one line per request at its end.

    Use as a context manager around the requests.
    """

    def __init__(self, expected_tokens: int, stream: TextIO | None = None) -> None:
        self._expected = expected_tokens
        self._stream = stream or sys.stdout
        self._live = can_redraw(self._stream)
        self._records: list[RequestRecord] = []
        self._lock = threading.Lock()
        self._drawn_at = 0.0
        self._lines = 0

    def watch(self, record: RequestRecord) -> None:
        with self._lock:
            self._records.append(record)

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            if self._live:
                self._draw()
            else:
                self._stream.writelines(f"{line}\n" for line in self._render(78))
            self._stream.flush()

    def token(self, record: RequestRecord) -> None:
        """A response has arrived (called from the client's thread)."""
        now = time.monotonic()
        with self._lock:
            if self._live and (now - self._drawn_at >= REDRAW_S or record.end):
                self._drawn_at = now
                self._draw()

    def _draw(self) -> None:
        lines = self._render(shutil.get_terminal_size().columns - 1)
        up = f"\x1b[{self._lines}F" if self._lines else ""
        self._stream.write(up + "".join(f"\x1b[2K{line}\n" for line in lines))
        self._stream.flush()
        self._lines = len(lines)

    def _render(self, width: int) -> Sequence[str]:
        lines = []
        for record in self._records:
            count = len(record.responses)
            filled = min(BAR, BAR * count // max(1, self._expected))
            bar = "#" * filled + "." * (BAR - filled)
            head = f"  {printable(record.prompt[:28]):<28} [{bar}] {count:4d} "
            tail = printable(record.text.replace("\n", " "))
            room = width - len(head) - 1
            if len(tail) > room:
                tail = "…" + tail[-(room - 1) :] if room > 1 else ""
            lines.append(head + tail)
        return lines


class ProgressLine:
    """One line that says how many requests are answered, redrawn in place, and gone when the block ends.

    On a stream that is not a terminal it prints a line every few seconds. Call it with (answered, of how many).
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stdout
        self._live = can_redraw(self._stream)
        self._began = self._shown_at = time.monotonic()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def __call__(self, answered: int, total: int) -> None:
        now = time.monotonic()
        if not self._live and now - self._shown_at < LINE_S:
            return
        self._shown_at = now
        line = f"  {self._title}: {answered} of {total} requests answered, {now - self._began:.0f} s"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[2K{line[:width]}")
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()
