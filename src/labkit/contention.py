"""How much of this machine's processors other programs take: what a timed verdict must know about its own run."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

SAMPLE_S = 0.2
TOO_MUCH = 0.1  # of all processors; measured alone on two cores: 0.00 to 0.03
_BLOCK = bytes(2**18)


def share_taken_by_others(seconds: float = SAMPLE_S) -> float:
    """Compute on every processor for a moment, and compare the processor time received with the time that passed.

    Call it while the programs under measurement are idle. Hypervisors that lend processors to others count as well.

    Args:
        seconds: length of the sample.

    Returns:
        0.0 (nothing else runs) to 1.0.
    """
    processors = len(os.sched_getaffinity(0))

    def compute(_: int) -> float:
        began, received = time.monotonic(), time.thread_time()
        while time.monotonic() < began + seconds:
            hashlib.sha256(_BLOCK)  # without Python's lock
        return (time.thread_time() - received) / (time.monotonic() - began)

    with ThreadPoolExecutor(processors) as threads:
        received = sum(threads.map(compute, range(processors))) / processors
    return min(max(1.0 - received, 0.0), 1.0)
