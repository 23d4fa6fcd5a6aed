"""When requests are sent: all at once, at a fixed or random rate, or so that a number of them is always in flight."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from labkit.client.ask import TELL_S, InFlightClient, Tell, TextStream
from labkit.evidence.records import RequestRecord


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times in seconds from the start: exponential gaps, ``rate`` per second on average, the first at 0."""
    rng = random.Random(seed)
    at, times = 0.0, []
    for _ in range(count):
        times.append(at)
        at += rng.expovariate(rate)
    return times


def open_loop(
    arrivals: Sequence[float], send: Callable[[int], RequestRecord], tell: Tell | None = None
) -> list[RequestRecord]:
    """Send request ``i`` at ``arrivals[i]`` seconds from now, whatever has become of the earlier ones.

    ``tell`` is called a few times a second with how many are answered, and of how many.
    """
    began = time.monotonic()
    records: list[RequestRecord] = []
    for index, at in enumerate(arrivals):
        while (left := began + at - time.monotonic()) > 0:
            time.sleep(min(left, TELL_S))
            if tell:
                tell(sum(record.end > 0 for record in records), len(arrivals))
        record = send(index)
        record.due = began + at
        records.append(record)
    return records


def closed_loop(
    endpoint: str,
    concurrency: int,
    count: int,
    send: Callable[[Any, int], RequestRecord],
    timeout: float,
    tell: Tell | None = None,
    connect: Callable[[str], InFlightClient] = TextStream,
) -> list[RequestRecord]:
    """Send ``count`` requests with ``concurrency`` of them in flight: each user sends its next after its last answer.

    Args:
        timeout: seconds, for each answer.
        tell: called, by this thread alone and a few times a second, with how many are answered, and of how many.
        connect: each user's connection to ``endpoint``, which ``send`` gets.

    Raises:
        LabError: a request failed, or had no answer within ``timeout``.
    """
    numbers: Iterator[int] = iter(range(count))
    lock = threading.Lock()
    records: list[RequestRecord] = []
    errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def user() -> None:
        try:
            with connect(endpoint) as stream:
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None or not errors.empty():
                        return
                    record = send(stream, number)
                    with lock:
                        records.append(record)
                    stream.wait(record, timeout=timeout)
        except BaseException as error:
            errors.put(error)

    threads = [threading.Thread(target=user, daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(TELL_S)
            if tell:
                tell(sum(record.end > 0 for record in records), count)
    if not errors.empty():
        raise errors.get()
    return records
