"""``${parameter}`` placeholders in a ``config.pbtxt`` or a YAML file: found with their lines, filled so that the text
stays valid.

Filling is strict. A placeholder without a value is a problem, also an empty value where nothing was declared to be
empty; a placeholder in a comment is filled where it can be and is never required. Inside a quoted string a value is
escaped for protobuf's text format; outside it is inserted as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
ANY_PLACEHOLDER = re.compile(r"\$\{[^}\n]*\}?")


@dataclass(frozen=True)
class Use:
    """One placeholder: its key, where it stands, and what surrounds it."""

    key: str
    line: int
    start: int
    end: int
    quoted: bool
    comment: bool


@dataclass(frozen=True)
class Problem:
    """What is wrong, with file, line (0: the whole file) and key."""

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.text}" if self.key else f"{where}: {self.text}"


@dataclass(frozen=True)
class Replacement:
    """A literal text of one template (a path below the repository) and what stands in its place: a checked ``sed``.

    One that matches nothing is an error of the rendering.
    """

    file: str
    find: str
    replace: str


@functools.lru_cache(maxsize=256)  # a run of many phases fills the same templates again and again
def placeholders(text: str) -> tuple[Use, ...]:
    """Every placeholder of a template, in order."""
    return tuple(_scan(text))


def _scan(text: str) -> Iterator[Use]:
    quote, comment, line, at = "", False, 1, 0
    while at < len(text):
        char = text[at]
        if match := PLACEHOLDER.match(text, at):
            yield Use(match[1], line, match.start(), match.end(), bool(quote), comment)
            at = match.end()
            continue
        if char == "\n":
            quote, comment, line = "", False, line + 1
        elif not comment:
            if quote:
                if char == "\\":
                    at += 1
                elif char == quote:
                    quote = ""
            elif char in "\"'":
                quote = char
            elif char == "#":
                comment = True
        at += 1


def fill(
    file: str, text: str, values: Mapping[str, Any], optional: Collection[str] = (), lenient: bool = False
) -> tuple[str, list[Problem]]:
    """The template with every placeholder filled, and all that stands against it.

    Args:
        values: by key; booleans become ``true``/``false``, None and "" are empty.
        optional: keys for which empty is a meaning and not an omission.
        lenient: a placeholder in quotes that has no value stays as it is.
    """
    problems: list[Problem] = []
    parts: list[str] = []
    end = 0
    for use in placeholders(text):
        parts.append(text[end : use.start])
        end = use.end
        if use.key not in values:
            if not (use.comment or (lenient and use.quoted)):
                problems.append(Problem(file, use.line, use.key, "no value is given"))
            parts.append(text[use.start : use.end])
            continue
        value = placeholder_text(values[use.key])
        if not value and not use.comment and use.key not in optional:
            problems.append(Problem(file, use.line, use.key, "the value is empty"))
        if use.comment:
            parts.append(re.sub(r"[\r\n]", " ", value))
        else:
            parts.append(escape(value) if use.quoted else value)
    parts.append(text[end:])
    for match in ANY_PLACEHOLDER.finditer(text):
        if not PLACEHOLDER.fullmatch(match[0]):
            *above, begun = text[: match.start()].split("\n")
            if "#" not in begun:  # else it is in a comment
                what = f"'{match[0]}' is not a placeholder that can be filled"
                problems.append(Problem(file, len(above) + 1, "", what))
    return "".join(parts), problems


def placeholder_text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def escape(value: str) -> str:
    """A value inside a quoted string of protobuf's text format (which is UTF-8, so unicode stays as it is)."""
    table = {"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(table.get(char, char) for char in value)
