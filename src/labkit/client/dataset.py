"""Workloads for the identity test: generated from a seed for the tokenizer in use, or a person's own file."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError

_KINDS = {type(None): "null", list: "a list", dict: "an object", bool: "true or false", str: "a text"}
Count = Callable[[str], int]  # tokens of a text
LARGEST = 64 * 2**20  # bytes of a dataset; the workshop's has half of one MiB
WORDS_TO_TOKENS = 1.3  # of an answer, as the workshop counts
PUBLISHED = (799.66, 41.49)  # mean tokens in and out of the workshop's 98 prompts
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body "
    "information back parent face level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education the of and to in is that it was for on are as with his they "
    "at be this have from or one had by but not what all were we when your can said there use an each which she do how"
).split()


@dataclass(frozen=True)
class Item:
    """One request: its text, its number of output tokens, and its tenant."""

    prompt: str
    output_tokens: int
    tenant: str | None = None


def expected_tokens(answer: str) -> int:
    """The identity test's rule, at least one."""
    return max(1, int(len(answer.split()) * WORDS_TO_TOKENS))


def read_rows(path: Path, form: str) -> list[Any]:
    """The rows of a dataset: a JSON list, and not an empty one.

    Args:
        form: in words, what the file should be; the remedy of an error.

    Raises:
        LabError: it is none, or larger than ``LARGEST`` bytes: it is read in one piece.
    """
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise LabError(
                f"{path} is too large for a dataset",
                f"it has more than {LARGEST >> 20} MiB",
                form,
                code="dataset-too-large",
            )
        rows = json.loads(text)
    except RecursionError:
        raise LabError(
            f"{path} cannot be read as a dataset", "it is nested too deeply", form, code="dataset-unreadable"
        ) from None
    except OSError as error:
        raise LabError(
            f"{path} cannot be read as a dataset", error.strerror or str(error), form, code="dataset-unreadable"
        ) from error
    except ValueError as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"it is not JSON: {error}"
        raise LabError(f"{path} cannot be read as a dataset", why, form, code="dataset-unreadable") from error
    if not isinstance(rows, list):
        why = f"it holds {_KINDS.get(type(rows), 'a number')}, not a list"
        raise LabError(f"{path} cannot be read as a dataset", why, form, code="dataset-unreadable")
    if not rows:
        raise LabError(f"{path} holds no prompts", "", form, code="dataset-empty")
    return rows


def load_dataset(path: Path) -> list[Item]:
    """A CNN/DailyMail-style file: a JSON list of {"input", "instruction", "output"}.

    Raises:
        LabError: the file has another form, or is too large.
    """
    form = 'a JSON list of {"input": ..., "instruction": ..., "output": ...}'
    items = []
    for number, row in enumerate(read_rows(path, form), 1):
        article, instruction, output = (
            field_text(path, number, row, name, form) for name in ("input", "instruction", "output")
        )
        items.append(Item(f"{article} {instruction}", expected_tokens(output)))
    return items


def field_text(path: Path, number: int, row: Any, name: str, form: str) -> str:
    """The text of a field in the dataset's row of that number. Raises LabError: the field is not a text."""
    if not isinstance(row, dict):
        why = f"row {number} is {_KINDS.get(type(row), 'a number')}"
    elif name not in row:
        why = f"row {number} has no '{name}'"
    elif not isinstance(row[name], str):
        why = f"row {number}: '{name}' is {_KINDS.get(type(row[name]), 'a number')}, not a text"
    else:
        return require_unicode(path, f"row {number}: '{name}'", row[name], form)
    raise LabError(f"{path} cannot be read as a dataset", why, form, code="dataset-unreadable")


def require_unicode(path: Path, place: str, text: str, form: str) -> str:
    """The text. Raises LabError: it is not Unicode; JSON's escapes can write half of a surrogate pair."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        why = f"{place} has half of a surrogate pair, which is not a character"
        raise LabError(f"{path} cannot be read as a dataset", why, form, code="dataset-unreadable")
    return text


def make_articles(count_tokens: Count, count: int = 98, seed: int = 0, scale: float = 1.0) -> list[Item]:
    """Long prompts, short answers; at ``scale`` 1 the workshop's means: 799.66 tokens in, 41.49 out.

    The spread is that of news articles and their summaries: lognormal, sigma 0.45 and 0.35; the means are met
    exactly over the whole set, up to rounding. ``scale`` shortens the prompts for a quick run.
    """
    rng = random.Random(seed)
    inputs = _lengths(rng, count, PUBLISHED[0] * scale, sigma=0.45, least=16, most=int(2.2 * PUBLISHED[0] * scale))
    outputs = _lengths(rng, count, PUBLISHED[1], sigma=0.35, least=8, most=120)
    return _items(rng, count_tokens, inputs, outputs)


def make_chats(count_tokens: Count, count: int = 98, seed: int = 0, scale: float = 1.0) -> list[Item]:
    """Chat-like: prompts of about 100 tokens, answers whose lengths vary widely (lognormal, sigma 1, mean 51).

    ``scale`` shortens the answers for a quick run.
    """
    rng = random.Random(seed)
    inputs = _lengths(rng, count, 100.0, sigma=0.4, least=16, most=300)
    outputs = _lengths(rng, count, 51.0 * scale, sigma=1.0, least=1, most=int(512 * scale))
    return _items(rng, count_tokens, inputs, outputs)


def _lengths(rng: random.Random, count: int, mean: float, sigma: float, least: int, most: int) -> list[int]:
    """``count`` lognormal whole numbers whose sum is ``mean * count`` (rounded).

    Each is within the bounds, up to the one token by which the longest make up for the rounding of all.
    """
    raw = [math.exp(rng.gauss(0.0, sigma)) for _ in range(count)]
    whole = round(mean * count)
    low, high = 0.0, 100.0 * mean  # the factor that gives the mean, found by halving: clamping bends the sum
    for _ in range(60):
        factor = (low + high) / 2
        total = sum(min(most, max(least, value * factor)) for value in raw)
        low, high = (factor, high) if total < whole else (low, factor)
    lengths = [round(min(most, max(least, value * low))) for value in raw]
    order = sorted(range(count), key=lambda index: -lengths[index])
    for step in range(abs(whole - sum(lengths))):  # spread the rounding error, one token each
        index = order[step % count]
        lengths[index] += 1 if sum(lengths) < whole else -1
    return lengths


def _items(rng: random.Random, count_tokens: Count, inputs: Sequence[int], outputs: Sequence[int]) -> list[Item]:
    return [Item(_text(rng, count_tokens, tokens), out) for tokens, out in zip(inputs, outputs, strict=True)]


def _text(rng: random.Random, count_tokens: Count, tokens: int) -> str:
    """Words drawn at random, as many as make ``tokens`` tokens (one more or less where a word is several)."""
    words: list[str] = []
    missing = tokens
    while missing > 0:
        words += rng.choices(WORDS, k=max(1, int(missing / 1.6)))
        missing = tokens - count_tokens(" ".join(words))
    while len(words) > 1 and count_tokens(" ".join(words)) > tokens:
        words.pop()
    return " ".join(words)
