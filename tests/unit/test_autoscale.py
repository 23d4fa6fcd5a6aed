"""What the small loop behind ``labctl scale --auto`` decides."""

from __future__ import annotations

import pytest

from labctl.errors import LabError
from labctl.orchestrator.autoscale import Scaler, bounds


def test_more_replicas_come_only_when_too_many_wait_several_times_in_a_row() -> None:
    scaler = Scaler(1, 3, target=4, patience=3)
    assert [scaler.decide(waiting, 1) for waiting in (9, 9, 4, 9, 9, 9)] == [1, 1, 1, 1, 1, 2]
    assert [scaler.decide(9, 2) for _ in range(3)] == [2, 2, 3]
    assert {scaler.decide(99, 3) for _ in range(9)} == {3}


def test_fewer_come_only_after_nothing_has_waited_for_long() -> None:
    scaler = Scaler(1, 3, patience=2)
    looks = [scaler.decide(0, 2) for _ in range(19)]
    assert set(looks) == {2}
    assert scaler.decide(1, 2) == 2
    assert [scaler.decide(0, 2) for _ in range(20)] == [2] * 19 + [1]
    assert {scaler.decide(0, 1) for _ in range(50)} == {1}


def test_it_stays_between_its_bounds_from_the_first_look_on() -> None:
    assert Scaler(2, 3).decide(0, 1) == 2
    assert Scaler(1, 2).decide(0, 5) == 2


@pytest.mark.parametrize("text", ["", "3", "0:2", "3:2", "1:99", "a:b"])
def test_bounds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(LabError, match="cannot be used"):
        bounds(text)
    assert bounds("1:4") == (1, 4)
