"""How much of this machine's processors other programs take: what a timed verdict and a time limit must know."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from labctl.limits import processors
from labsched.run_queue import waited_by_any

SAMPLE_S = 0.2  # length of a sample
TOO_MUCH = 0.1  # of all processors; measured alone on two cores: 0.00 to 0.03
STRETCHED = 5  # times its seconds a patience may last
_BLOCK = bytes(2**18)


def share_taken_by_others() -> float:
    """Compute on every processor for a moment, and compare the processor time received with the time that passed.

    Call it while the programs under measurement are idle. Hypervisors that lend processors to others count as well.

    Returns:
        0.0 (nothing else runs) to 1.0.
    """
    count = processors()

    def compute(_: int) -> float:
        began, received = time.monotonic(), time.thread_time()
        while time.monotonic() < began + SAMPLE_S:
            hashlib.sha256(_BLOCK)  # without Python's lock
        return (time.thread_time() - received) / (time.monotonic() - began)

    with ThreadPoolExecutor(count) as threads:
        received = sum(threads.map(compute, range(count))) / count
    return min(max(1.0 - received, 0.0), 1.0)


class Patience:
    """A time limit that a busy machine stretches: seconds in which a processor was waited for do not count.

    After ``STRETCHED`` times its seconds a patience is over all the same; then it says that it was ``stretched``, and
    nothing is known of what was waited for.

    Args:
        waited: seconds that were waited for a processor, counted from any time on; without it, those in which any
            program of this machine waited.
    """

    def __init__(self, seconds: float, waited: Callable[[], float] | None = None) -> None:
        self.seconds, self._waited = seconds, waited or waited_by_any
        self._began, self._before = time.monotonic(), self._waited()

    def left(self) -> float:
        """Seconds; 0.0 when it is over."""
        passed, counted = self._times()
        return max(0.0, self.seconds - max(counted, passed / STRETCHED))

    @property
    def stretched(self) -> bool:
        """Whether it is over, or will be, only because nothing waits longer than that."""
        return self._times()[1] < self.seconds

    def _times(self) -> tuple[float, float]:
        """The seconds that have passed, and those of them that count."""
        passed = time.monotonic() - self._began
        return passed, passed - (self._waited() - self._before)
