"""The one grammar of ``{...}`` in a manifest, and the one comparison of a setting's value.

``{settings.x}``, ``{artifacts.x}``, ``{run_dir}``, ``{profile}``, ``{stack}``, ``{release}`` and ``{vocab_size}`` stand
for values. Whatever else stands between braces without a space is a mistake, so that ``{run_dirr}`` is refused and
never reaches a ``config.pbtxt``. A brace of Triton's own language has a space beside it: ``direct { }``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.errors import LabError

REFERENCE = re.compile(r"\{([^{}\s]+)\}")
CHOICE = {"setting", "map"}  # the keys of a value that depends on a setting


def expand(value: Any, scope: Mapping[str, Any]) -> Any:
    """Fill the references of a value; a text that is nothing but one reference keeps the value's own type.

    ``{setting: x, map: {...}}`` becomes the map's entry for that setting's value.

    Raises:
        LabError: ``scope`` has no such name, or the map no such value.
    """
    if isinstance(value, dict):
        if value.keys() == CHOICE:
            return expand(_chosen(value["setting"], value["map"], scope), scope)
        return {key: expand(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, scope) for item in value]
    if not isinstance(value, str):
        return value
    for name in REFERENCE.findall(value):
        if name not in scope:
            raise LabError(f"a manifest refers to '{{{name}}}'", "that name is not known at that point of the stack")
    if match := REFERENCE.fullmatch(value):
        return scope[match[1]]
    return REFERENCE.sub(lambda match: as_text(scope[match[1]]), value)


def _chosen(setting: str, options: Mapping[str, Any], scope: Mapping[str, Any]) -> Any:
    value = scope.get(f"settings.{setting}")
    for key, chosen in options.items():
        if same(value, key):
            return chosen
    raise LabError(f"the manifest has no text for {setting}={as_text(value)}", f"it has: {', '.join(options)}")


def same(value: Any, written: Any) -> bool:
    """Whether a setting has the value that ``only``, ``when`` or ``map`` of a manifest names."""
    return as_text(value) == as_text(written)


def holds(condition: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]) -> bool:
    """Whether every setting of ``condition`` has one of the values that stand there."""
    return all(any(same(settings.get(key), value) for value in good) for key, good in condition.items())


def as_text(value: Any) -> str:
    """A value as a manifest writes it: ``true``, ``8``, ``8,32``."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def strings(value: Any) -> Iterator[str]:
    """Every string inside nested lists and dicts, their keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)
