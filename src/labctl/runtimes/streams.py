"""Several streams of lines as one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence


def as_they_come(streams: Sequence[Iterator[str]]) -> Iterator[str]:
    """The lines of several streams; whatever one of them raises."""
    if len(streams) == 1:
        yield from streams[0]
        return
    arrived: queue.Queue[str | Exception | None] = queue.Queue()

    def read(stream: Iterator[str]) -> None:
        try:
            for line in stream:
                arrived.put(line)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    for stream in streams:
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    ended = 0
    while ended < len(streams):
        line = arrived.get()
        if isinstance(line, Exception):
            raise line
        if line is None:
            ended += 1
        else:
            yield line
