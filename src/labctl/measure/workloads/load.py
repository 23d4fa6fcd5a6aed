"""When requests are sent: all at once, at a fixed or random rate, or so that a number of them is always in flight."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from labctl.measure.clients.stream import TextStream
from labctl.measure.records import RequestRecord


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times in seconds from the start: exponential gaps of mean 1/rate, the first at 0."""
    rng = random.Random(seed)
    at, times = 0.0, []
    for _ in range(count):
        times.append(at)
        at += rng.expovariate(rate)
    return times


def open_loop(arrivals: Sequence[float], send: Callable[[int], RequestRecord]) -> list[RequestRecord]:
    """Send request ``i`` at ``arrivals[i]`` seconds from now, whatever has become of the earlier ones."""
    began = time.monotonic()
    records = []
    for index, at in enumerate(arrivals):
        time.sleep(max(0.0, began + at - time.monotonic()))
        records.append(send(index))
    return records


def closed_loop(
    endpoint: str,
    concurrency: int,
    count: int,
    send: Callable[[TextStream, int], RequestRecord],
    timeout: float,
) -> list[RequestRecord]:
    """Send ``count`` requests with ``concurrency`` of them in flight: each user sends its next after its last answer.

    Raises:
        LabError: a request failed or none ended within ``timeout`` seconds.
    """
    import queue
    import threading

    numbers: Iterator[int] = iter(range(count))
    lock = threading.Lock()
    records: list[RequestRecord] = []
    errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def user() -> None:
        try:
            with TextStream(endpoint) as stream:
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
        thread.join()
    if not errors.empty():
        raise errors.get()
    return records
