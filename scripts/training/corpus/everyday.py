"""Everyday English for a tokenizer: word lists of our own (words/), their inflections, and how often to show each form.

Most words of a text stand after a space, fewer begin a line or a sentence; the forms are weighted so, and the words of
frequent.txt by their rank, so that a vocabulary too small for everything keeps what is used most.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

WORDS = Path(__file__).resolve().parent / "words"
VOWELS = "aeiou"
RANKED = 520  # what a word that is in no frequency list counts as


def words(name: str) -> list[str]:
    """The entries of words/``name``.txt, in their order."""
    return (WORDS / f"{name}.txt").read_text(encoding="utf-8").split()


def with_s(word: str) -> str:
    """The plural of a noun, or the third person of a verb."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def _doubles(word: str) -> bool:
    """Short words that end consonant, vowel, consonant double the last: stop, stopped."""
    vowels = sum(letter in VOWELS for letter in word)
    return vowels == 1 and len(word) > 2 and word[-2] in VOWELS and word[-1] not in VOWELS + "wxy"


def with_ed(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ied"
    return verb + verb[-1] * _doubles(verb) + "ed"


def with_ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")):
        return verb[:-1] + "ing"
    return verb + verb[-1] * _doubles(verb) + "ing"


def with_ly(adjective: str) -> str:
    if adjective.endswith("le"):
        return adjective[:-1] + "y"
    if adjective.endswith("y"):
        return adjective[:-1] + "ily"
    if adjective.endswith("ic"):
        return adjective + "ally"
    return adjective + "ly"


def ranks() -> dict[str, int]:
    """Every word with its rank: 0 is the most frequent."""
    found: dict[str, int] = {}
    for rank, word in enumerate(words("frequent")):
        found.setdefault(word, rank)
    rest = words("technical") + words("irregular") + words("nouns") + words("verbs") + words("adjectives")
    rest += [with_s(word) for word in words("nouns") + words("verbs")]
    rest += [make(verb) for verb in words("verbs") for make in (with_ed, with_ing)]
    rest += [with_ly(word) for word in words("adjectives")]
    for word in rest:
        found.setdefault(word, RANKED)
    return found


def forms() -> Iterator[tuple[str, int]]:
    """Each text to learn and how many times it is shown."""
    for word, rank in ranks().items():
        often = 60 + 40_000 // (rank + 20)
        yield f" {word}", often
        yield word, often // 4
        if word[0].islower():
            yield f" {word.capitalize()}", often // 6
            yield word.capitalize(), often // 5
    for number in range(1000):
        often = 60 if number < 100 else 25
        yield f" {number}", often
        yield str(number), often
    for year in range(1950, 2031):
        yield f" {year}", 25
    for mark in words("phrases"):
        yield mark, 80
        yield f" {mark}", 60
    for blanks in ("\n", "\n\n", *("\n" + " " * n for n in (1, 2, 3, 7, 11)), *(" " * n for n in range(2, 17))):
        yield blanks, 60
