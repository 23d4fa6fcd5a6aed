"""The fields of a trace's row, as files have them: numbers, numbers in quotes, or nothing at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NOTHING = (None, "")
MOST_DIGITS = 4000  # Python converts no longer ones; such a number is out of every range


def integer_cell(row: Mapping[str, Any], name: str, missing: int | None = None) -> int:
    """A field's whole number; ``missing`` is for a field that is absent or empty.

    Raises ValueError, in words: the field is missing, or not a whole number.
    """
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # a hash may have more digits than a float keeps
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value[:MOST_DIGITS])
    value = number_cell(row, name, missing)
    if not value.is_integer():
        raise ValueError(f"{name} is {_shown(row[name])}, and no whole number")
    return int(value)


def number_cell(row: Mapping[str, Any], name: str, missing: float | None = None) -> float:
    """The same for any finite number."""
    value = row.get(name)
    if value in NOTHING:
        if missing is None:
            raise ValueError(f"it has no {name}")
        return float(missing)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {_shown(value)}, and no number") from None
    return number


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
