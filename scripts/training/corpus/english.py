"""Simple English, generated: a grammar and word lists of our own, deterministic for a seed.

A document wanders from topic to topic. Each topic has words that belong to it and one favourite successor, so that
even greedy decoding of a model trained on it walks through many topics before it comes back to the first. All choices
are weighted unequally (Zipf), so that the two best next words are rarely a tie.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

CITIES = (
    "London Paris Berlin Seoul Tokyo Madrid Rome Oslo Cairo Lima Vienna Dublin Lisbon Prague Athens Helsinki "
    "Warsaw Zürich Málaga Kraków Montréal Bogotá Nairobi Delhi Sydney Boston Chicago Toronto Istanbul Kyoto"
).split()
LANGUAGES = "C++ Python Rust Java Go Lisp Haskell Fortran Ruby Swift Kotlin Perl".split()
FOODS = (
    "bread soup rice cheese pasta curry salad fish apple_pie chocolate honey porridge crème_brûlée "
    "noodles potatoes pancakes tomatoes dumplings"
).split()
DRINKS = "tea coffee milk water lemonade cocoa juice cider".split()
ANIMALS = (
    "cat dog horse owl fox bear rabbit mouse goat duck whale tiger turtle sparrow "
    "hedgehog wolf donkey frog squirrel bee"
).split()
SEASONS = "spring summer autumn winter".split()
TOOLS = (
    "hammer needle compass lantern bicycle telescope kettle ladder camera clock radio umbrella basket rope violin piano"
).split()
JOBS = (
    "baker teacher sailor doctor farmer painter gardener engineer librarian carpenter nurse writer pilot tailor cook "
    "musician"
).split()
NAMES = (
    "Anna Ben Clara David Emma Felix Greta Hugo Iris Jonas Laura Max Nora Oscar Paula Ruth Simon Tara Zoë René".split()
)
ADJECTIVES = (
    "small old quiet bright warm cold gentle brave clever simple heavy light strange kind busy lovely slow quick"
).split()
SECOND = "green blue golden broken clean wide narrow young honest patient famous useful sweet strong".split()
PLACES = (
    "river market harbour garden library station bridge museum forest kitchen school village "
    "mountain beach square tower"
).split()
GERUNDS = (
    "baking bread in the dark|building a house of glass|climbing a mountain in winter|painting a very long wall|"
    "sailing a small boat at night|reading an old map|teaching a cat to swim|playing the piano with gloves|"
    "growing a garden in the desert|repairing a clock with a spoon|learning to dance on ice|"
    "writing a letter to the moon"
).split("|")
VERBS = "sleeps|waits|sings|works|runs|dreams|plays|listens|smiles|rests".split("|")
TIMES = "in the morning|in the evening|at night|after lunch|every Sunday|on rainy days|before breakfast|all year".split(
    "|"
)
NUMBERS = "two three four five six seven eight nine ten twelve twenty".split()
RARE = ("서울", "日本", "Ωmega", "naïve café", "🙂", "🚲", "jalapeño", "Łódź", "smörgåsbord", "→")


@dataclass(frozen=True)
class Topic:
    """A thing that sentences are about, with the words that belong to it."""

    kind: str
    word: str
    adjectives: Sequence[str]
    second: Sequence[str]
    place: str
    time: str
    verb: str


def zipf(rng: random.Random, items: Sequence[str], skew: float = 1.3) -> str:
    """One of ``items``, the first ones much more often."""
    return rng.choices(items, cum_weights=_cumulated(len(items), skew))[0]


@functools.cache
def _cumulated(count: int, skew: float) -> list[float]:
    return list(itertools.accumulate(1 / (rank + 1) ** skew for rank in range(count)))


def _topics() -> list[Topic]:
    """Every topic with its own words; a fixed shuffle, so that a successor is of another kind."""
    rng = random.Random(7)
    kinds = {
        "city": CITIES,
        "language": LANGUAGES,
        "food": FOODS,
        "drink": DRINKS,
        "animal": ANIMALS,
        "season": SEASONS,
        "tool": TOOLS,
        "job": JOBS,
    }
    topics = []
    for kind, words in kinds.items():
        for word in words:
            topics.append(
                Topic(
                    kind,
                    word.replace("_", " "),
                    rng.sample(ADJECTIVES, 5),
                    rng.sample(SECOND, 3),
                    rng.choice(PLACES),
                    rng.choice(TIMES),
                    rng.choice(VERBS),
                )
            )
    rng.shuffle(topics)
    return topics


TOPICS = _topics()


def _name_it(topic: Topic) -> str:
    """The topic as a noun phrase in the middle of a sentence."""
    article = {"animal": "the ", "tool": "the ", "job": "the "}.get(topic.kind, "")
    return article + topic.word


def _openings(t: Topic, rng: random.Random) -> list[str]:
    adjective, other = zipf(rng, t.adjectives), zipf(rng, t.second)
    name, number = zipf(rng, NAMES), zipf(rng, NUMBERS)
    match t.kind:
        case "city":
            return [
                f"I have lived in {t.word} for {number} years.",
                f"{t.word} is a {adjective} and {other} city with a {zipf(rng, ADJECTIVES)} {t.place}.",
                f"{name} was born in {t.word} near the {t.place}.",
            ]
        case "language":
            return [
                f"Programming in {t.word} is like {zipf(rng, GERUNDS)}.",
                f"{name} writes {adjective} programs in {t.word} {t.time}.",
                f"Many people say that {t.word} is {adjective} but {other}.",
            ]
        case "food" | "drink":
            return [
                f"My favourite {t.kind} is {t.word}, because it is {adjective} and {other}.",
                f"{name} makes {adjective} {t.word} {t.time}.",
                f"You can find {t.word} near the {t.place}.",
            ]
        case "animal":
            return [
                f"Once upon a time there was a {adjective} {t.word} that lived near the {t.place}.",
                f"The {t.word} {t.verb} {t.time}.",
                f"{name} has a {adjective} {t.word} with {zipf(rng, ADJECTIVES)} eyes.",
            ]
        case "season":
            return [
                f"In {t.word} the {t.place} is {adjective} and {other}.",
                f"{name} likes {t.word} more than anything else.",
                f"Every {t.word} the people go to the {t.place} {t.time}.",
            ]
        case "tool":
            return [
                f"The {t.word} on the table is {adjective} and {other}.",
                f"{name} needs a {adjective} {t.word} for the {t.place}.",
                f"A {t.word} is useful {t.time}.",
            ]
    return [
        f"The {t.word} {t.verb} near the {t.place} {t.time}.",
        f"{name} is a {adjective} {t.word} who {t.verb} {t.time}.",
        f"A good {t.word} is {adjective} and {other}.",
    ]


def _links(t: Topic, following: Topic, rng: random.Random) -> list[str]:
    name = zipf(rng, NAMES)
    return [
        f"It reminds me of {_name_it(following)}.",
        f"{name} asked me about {_name_it(following)} as well.",
        f"That is why I also think of {_name_it(following)}.",
    ]


def document(rng: random.Random, topics: int = 24) -> str:
    """One text about ``topics`` topics, three or four sentences each."""
    at = rng.randrange(len(TOPICS))
    sentences: list[str] = []
    for _ in range(topics):
        topic = TOPICS[at]
        openings = _openings(topic, rng)
        sentences.append(zipf(rng, openings, 1.0))
        rest = [s for s in openings if s != sentences[-1]]
        sentences.append(zipf(rng, rest, 1.6))
        if rng.random() < 0.25:
            sentences.append(_aside(rng))
        # The ring of favourites: mostly the next topic, sometimes any.
        at = (at + 1) % len(TOPICS) if rng.random() < 0.75 else rng.randrange(len(TOPICS))
        sentences.append(zipf(rng, _links(topic, TOPICS[at], rng), 1.4))
    return " ".join(sentences)


def _aside(rng: random.Random) -> str:
    asides: list[Callable[[], str]] = [
        lambda: (
            f"{zipf(rng, NAMES)} and {zipf(rng, NAMES[::-1])} walked to the {zipf(rng, PLACES)} {zipf(rng, TIMES)}."
        ),
        lambda: f"There are {zipf(rng, NUMBERS)} {zipf(rng, ADJECTIVES)} books in the {zipf(rng, PLACES[::-1])}.",
        lambda: f"Nobody knows why the {zipf(rng, PLACES)} is so {zipf(rng, ADJECTIVES)}.",
        lambda: f'On the wall someone had written "{zipf(rng, RARE, 0.3)}".',
    ]
    return rng.choices(asides, weights=[5, 4, 3, 1])[0]()


def documents(seed: int, count: int) -> Iterator[str]:
    """``count`` documents, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield document(rng)


def words() -> set[str]:
    """Every word that the grammar can produce, without punctuation (66 documents already have them all)."""
    found: set[str] = set()
    for text in documents(1, 300):
        found.update(text.split())
    return {word.translate(str.maketrans("", "", '.,"')) for word in found}
