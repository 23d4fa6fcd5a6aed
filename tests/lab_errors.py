"""Errors for people, in tests: known by their code and the values they name; the words are in golden/messages.txt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from labkit.errors import LabError


@contextlib.contextmanager
def lab_error(code: str, *values: object, kind: type[LabError] = LabError) -> Iterator[pytest.ExceptionInfo[LabError]]:
    """The block raises a LabError of that code, and each of the values stands in it."""
    __tracebackhide__ = True
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, caught.value
    said = str(caught.value)
    assert all(str(value) in said for value in values), said
