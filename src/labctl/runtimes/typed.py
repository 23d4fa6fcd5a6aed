"""Dataclasses that come from JSON: a value of another type is refused here, before it can end a command later."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")

# By the annotation of a field; any other annotation takes any value.
TYPES: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "Mapping[str, Any]": (dict,),
    "Sequence[str]": (list, tuple),
}


def load(kind: type[T], data: object, **fields: object) -> T:
    """A dataclass from a JSON object. A key that it does not know is a newer version's, and is left out.

    Args:
        fields: fields that are not in ``data`` as they are to be.

    Raises:
        TypeError: ``data`` is no object, lacks a field, or has a value of another type.
    """
    if not isinstance(data, dict):
        raise TypeError(f"no {kind.__name__}: {data!r:.80}")
    given: dict[str, Any] = {**data, **fields}
    known: Any = kind
    items = [item for item in dataclasses.fields(known) if item.name in given]
    for item in items:
        value, texts = given[item.name], item.type == "Sequence[str]"
        right = isinstance(value, TYPES.get(item.type, (object,)))
        if not right or (texts and not all(isinstance(part, str) for part in value)):
            raise TypeError(f"{item.name} of a {kind.__name__} cannot be {value!r:.80}")
    return kind(**{item.name: given[item.name] for item in items})
