"""Codes and visits of the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.hub.codes import INSTRUCTOR, LENGTH, WINDOW_S, WRONG, Attempts, Codes, Visits
from labkit.errors import LabError


def test_a_code_opens_its_own_seat_however_it_is_typed() -> None:
    known, codes = Codes.make(3)
    assert len(set(codes.values())) == 4
    assert [known.owner(f" {code[:5].lower()}-{code[5:]}\n") for code in codes.values()] == [INSTRUCTOR, 1, 2, 3]


@pytest.mark.parametrize("wrong", ["", "A", "A" * LENGTH, "é" * LENGTH, "x" * 10_000])
def test_another_word_opens_no_seat(wrong: str) -> None:
    assert Codes.make(3)[0].owner(wrong) is None


def test_the_file_of_codes_holds_hashes_alone_and_is_its_owners(tmp_path: Path) -> None:
    known, codes = Codes.make(3)
    known.save(path := tmp_path / "codes.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(code in path.read_text() for code in codes.values())
    assert (again := Codes.read(path)) is not None
    assert again.owner(codes[2]) == 2


def test_a_damaged_file_of_codes_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "codes.json").write_text('{"salt": 1}')
    with pytest.raises(LabError) as raised:
        Codes.read(tmp_path / "codes.json")
    assert "--new-codes" in raised.value.remedy


def test_an_address_that_failed_too_often_waits_and_no_other_does() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(WRONG):
        assert attempts.open("a")
        attempts.failed("a")
    assert (attempts.open("a"), attempts.open("b")) == (False, True)
    now[0] = WINDOW_S + 1
    assert attempts.open("a")


def test_many_addresses_together_are_stopped_too() -> None:
    attempts = Attempts(lambda: 0.0)
    for number in range(10 * WRONG):
        attempts.failed(str(number))
    assert not attempts.open("another")


def test_a_visit_ends_when_its_learner_leaves_and_after_its_time() -> None:
    now = [0.0]
    visits = Visits(lambda: now[0])
    first, second = visits.begin(1), visits.begin(2)
    visits.end(first)
    assert (visits.owner(first), visits.owner(second), visits.owner("")) == (None, 2, None)
    now[0] = 1e6
    assert visits.owner(second) is None
