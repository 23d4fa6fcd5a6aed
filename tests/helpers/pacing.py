"""A model's clock in a test's hand: requests meet however slowly a busy machine sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import eventually

from labctl.clock import Clock
from labkit.client import metrics

SLOWER = 50.0  # a step lasts so many times as long as it takes to compute, however long that is on a busy machine


@contextmanager
def standing(run_dir: Path, *models: str) -> Iterator[Clock]:
    """Let no step of these models begin for the time of a block, except by ``Clock.step``."""
    clock = Clock(run_dir, models)
    clock.pause()
    try:
        yield clock
    finally:
        clock.run()


@contextmanager
def slowed(run_dir: Path, *models: str, factor: float = SLOWER) -> Iterator[Clock]:
    """Make the steps of these models longer by a factor for the time of a block."""
    clock = Clock(run_dir, models)
    clock.slow(factor)
    try:
        yield clock
    finally:
        clock.run()


def await_held(clock: Clock, model: str, requests: int = 1) -> None:
    """Wait until a clock that stands still holds so many requests of the model, running and waiting."""
    eventually(lambda: clock.held_requests(model) >= requests)


def await_arrived(endpoint: str, clock: Clock, model: str, requests: int) -> None:
    """Wait until Triton and the model together have so many requests; ``endpoint`` is of Triton's metrics.

    A request that is handed over between the two looks counts in neither, and in the next ones. Triton counts no
    sequence that waits.
    """

    def there() -> float:
        return clock.held_requests(model) + metrics.scrape(endpoint).models[model].pending

    eventually(lambda: there() >= requests)
