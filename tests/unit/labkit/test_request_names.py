"""What requests are called on pages, tables and pictures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from labkit.evidence.names import LetterNames, letter, letters


@given(some.integers(0, 10**6))
def test_names_count_up_as_the_columns_of_a_spreadsheet(number: int) -> None:
    value = 0
    for character in letter(number):
        value = value * 26 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ".index(character) + 1
    assert value == number + 1


@given(some.lists(some.text()))
def test_each_id_has_one_name_in_order_of_arrival(ids: list[str]) -> None:
    names = letters(ids)
    assert list(names.values()) == [letter(number) for number in range(len(names))]
    assert [names[id] for id in ids] == [LetterNames(ids)[id] for id in ids]


@given(some.lists(some.lists(some.text(), unique=True), max_size=4))
def test_every_group_begins_with_a_and_a_later_request_has_a_name_of_its_own(groups: list[list[str]]) -> None:
    apart = [[f"{number} {id}" for id in ids] for number, ids in enumerate(groups)]
    names = LetterNames.of_groups(apart)
    assert all([names[id] for id in ids] == [letter(number) for number in range(len(ids))] for ids in apart)
    assert names["another"] not in [name for id, name in names.items() if id != "another"]
