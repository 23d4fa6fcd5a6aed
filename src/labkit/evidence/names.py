"""Names of requests: A, B, C ... Z, AA, AB ... in order of arrival, for pages, tables and pictures.

A program distinguishes requests by an id such as ``p280495001-f43e``; a person needs a letter.
"""

from __future__ import annotations

from collections.abc import Iterable


def letter(number: int) -> str:
    """The name of the request that arrived as number ``number``, from 0.

    >>> [letter(number) for number in (0, 25, 26, 51, 52, 701, 702)]
    ['A', 'Z', 'AA', 'AZ', 'BA', 'ZZ', 'AAA']
    """
    name = ""
    while number >= 0:
        number, rest = divmod(number, 26)
        name, number = chr(ord("A") + rest) + name, number - 1
    return name


class LetterNames(dict[str, str]):
    """The name of each request by its id: an id that is not known yet gets the next letter.

    >>> names = LetterNames(["518699010", "321612069"])
    >>> names["321612069"], names["77"], names["518699010"]
    ('B', 'C', 'A')
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        super().__init__()
        self.take(ids)

    @classmethod
    def of_groups(cls, groups: Iterable[Iterable[str]]) -> LetterNames:
        """Each group begins with A: the second request to one server and to another are both called B.

        >>> LetterNames.of_groups([["17", "18"], ["30", "31"]])
        {'17': 'A', '18': 'B', '30': 'A', '31': 'B'}
        """
        names = cls()
        for ids in groups:
            names.update(cls(ids))
        return names

    def __missing__(self, id: str) -> str:
        name = self[id] = letter(len(self))
        return name

    def take(self, ids: Iterable[str]) -> None:
        """Name these, in their order."""
        for id in ids:
            self[id]


class Numbered(LetterNames):
    """Names for ids that are numbers from 1 in order of arrival: each id alone gives the name.

    >>> Numbered(["27", "1"])
    {'27': 'AA', '1': 'A'}
    """

    def __missing__(self, id: str) -> str:
        name = self[id] = letter(int(id) - 1)
        return name


def letters(ids: Iterable[str]) -> dict[str, str]:
    """The name of each request, by its id; the ids are in order of arrival, and one that comes again keeps its name."""
    return dict(LetterNames(ids))
