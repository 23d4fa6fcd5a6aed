"""YAML, and the ``${parameter}`` placeholders of a ``config.pbtxt``: read and filled strictly.

A key that is there twice in a YAML file is refused. A placeholder without a value is a problem, also an empty value
where nothing was declared to be empty; one in a comment is filled where it can be and is never required. Inside a
quoted string a value is escaped for protobuf's text format; outside it is inserted as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ANY = re.compile(r"\$\{[^}\n]*\}?")
_PART = re.compile(r"""(?P<comment>\#[^\n]*)|(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|\$\{[^}\n]*\}?""")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


@dataclass(frozen=True)
class Problem:
    """What is wrong, with file, and line and key where it is about these."""

    file: str
    line: int | None
    key: str | None
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


def fill(
    file: str, text: str, values: Mapping[str, Any], optional: Collection[str] = (), lenient: bool = False
) -> tuple[str, list[Problem]]:
    """Fill every placeholder of a template; what stands against it is returned beside the text.

    Args:
        values: by key; booleans become ``true``/``false``, None and "" are empty.
        optional: keys for which empty is a meaning and not an omission.
        lenient: a placeholder in quotes that has no value stays as it is.
    """
    problems: list[Problem] = []

    def part(found: re.Match[str]) -> str:
        line = text.count("\n", 0, found.start()) + 1
        return _ANY.sub(lambda use: one(use, line, found.lastgroup), found[0])

    def one(use: re.Match[str], line: int, where: str | None) -> str:
        name = PLACEHOLDER.fullmatch(use[0])
        if where == "comment":
            known = name and name[1] in values
            return re.sub(r"[\r\n]", " ", placeholder_text(values[name[1]])) if name and known else use[0]
        if not name:
            problems.append(Problem(file, line, None, f"'{use[0]}' is not a placeholder that can be filled"))
            return use[0]
        key = name[1]
        if key not in values:
            if not (lenient and where == "quoted"):
                problems.append(Problem(file, line, key, "no value is given"))
            return use[0]
        value = placeholder_text(values[key])
        if not value and key not in optional:
            problems.append(Problem(file, line, key, "the value is empty"))
        return value.translate(_ESCAPES) if where == "quoted" else value

    return _PART.sub(part, text), problems


def unfilled_in_quotes(text: str) -> set[str]:
    """Return the keys of the placeholders in quotes; lenient filling may leave them as they are."""
    quoted = (found[0] for found in _PART.finditer(text) if found.lastgroup == "quoted")
    return {key for part in quoted for key in PLACEHOLDER.findall(part)}


def placeholder_text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


# A build without libyaml has only the slow one.
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_FASTEST):  # type: ignore[misc]
    """YAML keeps the last of two equal keys; here the second is refused, since one of the two is a mistake."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()  # the whole document, before `<<` is resolved in it
        _check(node, set())
        return node


def _check(node: yaml.Node | None, done: set[int]) -> None:
    if not isinstance(node, yaml.CollectionNode) or id(node) in done:  # an alias is the node of its anchor
        return
    done.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, done)
        return
    lines: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        line, name = key.start_mark.line + 1, (key.tag, str(key.value))
        if name in lines:
            raise yaml.YAMLError(f"line {line}: the key '{key.value}' is there already, in line {lines[name]}")
        lines[name] = line
        _check(value, done)


def parse_yaml(text: str) -> Any:
    """The document in ``text``. Raises yaml.YAMLError, which names the line, also for a key that is there twice."""
    return yaml.load(text, Loader=_Loader)


def merge_yaml(lower: Any, upper: Any) -> Any:
    """``upper`` over ``lower``: mappings key by key, everything else whole."""
    if not (isinstance(lower, dict) and isinstance(upper, dict)):
        return upper
    both = {key: merge_yaml(value, upper[key]) if key in upper else value for key, value in lower.items()}
    return both | {key: value for key, value in upper.items() if key not in lower}
