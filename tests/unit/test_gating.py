"""``LABS_GATE``: which of the longest tests are due."""

from __future__ import annotations

import pytest
from gating import due

NAMES = [f"02a wrong/{number}" for number in range(90)]


@pytest.mark.parametrize(("gate", "number"), [("", 0), ("full", 90)])
def test_none_are_due_unless_asked_for_and_all_in_full(gate: str, number: int) -> None:
    assert sum(due(name, gate) for name in NAMES) == number


def test_each_is_due_in_exactly_one_part_and_parts_are_of_like_size() -> None:
    parts = [[name for name in NAMES if due(name, f"{part}/3")] for part in (1, 2, 3)]
    assert sorted([*parts[0], *parts[1], *parts[2]]) == sorted(NAMES)
    assert all(20 <= len(part) <= 40 for part in parts)


@pytest.mark.parametrize("gate", ["FULL", "0/3", "4/3", "1/0", "1", "1/3 "])
def test_another_word_is_refused(gate: str) -> None:
    with pytest.raises(ValueError, match='"full" or a part'):
        due("02a", gate)
