"""A time limit on a busy machine: waiting for a processor does not count, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labkit import contention

Pass = Callable[[float, float], None]


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pass:
    """Let seconds pass, in some of which a program waited for a processor."""
    clock, waited = [100.0], [5.0]
    pressure = tmp_path / "cpu"
    monkeypatch.setattr(contention, "PRESSURE", pressure)
    monkeypatch.setattr("labkit.contention.time.monotonic", lambda: clock[0])

    def passed(seconds: float, busy: float) -> None:
        clock[0] += seconds
        waited[0] += busy
        pressure.write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waited[0] * 1e6:.0f}\nfull avg10=0.00\n")

    passed(0, 0)
    return passed


def test_on_a_free_machine_a_patience_is_over_after_its_seconds(pass_time: Pass) -> None:
    patience = contention.Patience(10)
    pass_time(4, 0)
    assert patience.left() == pytest.approx(6)
    pass_time(6, 0)
    assert not patience.left()


def test_seconds_in_which_a_program_waited_for_a_processor_do_not_count(pass_time: Pass) -> None:
    patience = contention.Patience(10)
    pass_time(12, 8)
    assert patience.left() == pytest.approx(6)


def test_on_the_busiest_machine_a_patience_is_over_after_three_times_its_seconds(pass_time: Pass) -> None:
    patience = contention.Patience(10)
    pass_time(29, 29)
    assert patience.left()
    pass_time(1, 1)
    assert not patience.left()


def test_a_kernel_that_counts_no_waiting_lets_every_second_count(
    pass_time: Pass, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(contention, "PRESSURE", tmp_path / "none")
    patience = contention.Patience(10)
    pass_time(10, 10)
    assert not patience.left()
