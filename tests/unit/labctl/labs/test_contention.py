"""A time limit on a busy machine: waiting for a processor does not count, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labctl import contention
from labsched import run_queue

Pass = Callable[[float, float], None]


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pass:
    """Let seconds pass, in some of which a program waited for a processor."""
    clock, waited = [100.0], [5.0]
    pressure = tmp_path / "pressure" / "cpu"
    pressure.parent.mkdir()
    monkeypatch.setattr(run_queue, "PROC", tmp_path)
    monkeypatch.setattr("labctl.contention.time.monotonic", lambda: clock[0])

    def passed(seconds: float, busy: float) -> None:
        clock[0] += seconds
        waited[0] += busy
        pressure.write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waited[0] * 1e6:.0f}\nfull avg10=0.00\n")

    passed(0, 0)
    return passed


@pytest.mark.parametrize(
    ("seconds", "busy", "left", "stretched"),
    [
        (4, 0, 6, True),
        (10, 0, 0, False),
        (12, 8, 6, True),  # seconds in which a program waited for a processor do not count
        (49, 49, 10 - 49 / 5, True),  # but on the busiest machine a patience is over after five times its seconds
        (50, 50, 0, True),
        (50, 40, 0, False),
    ],
)
def test_a_patience_is_over_after_its_seconds_of_a_free_processor_or_five_times_as_many(
    pass_time: Pass, seconds: float, busy: float, left: float, stretched: bool
) -> None:
    patience = contention.Patience(10)
    pass_time(seconds, busy)
    assert patience.left() == pytest.approx(left)
    assert patience.stretched == stretched


def test_a_patience_may_count_what_certain_programs_waited(pass_time: Pass) -> None:
    waited = [3.0]
    patience = contention.Patience(10, lambda: waited[0])
    pass_time(10, 10)
    waited[0] += 4
    assert patience.left() == pytest.approx(4)


def test_a_kernel_that_counts_no_waiting_lets_every_second_count(
    pass_time: Pass, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_queue, "PROC", tmp_path / "none")
    patience = contention.Patience(10)
    pass_time(10, 10)
    assert not patience.left()
