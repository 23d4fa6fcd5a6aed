"""Errors for people, in tests: known by their code and the values they name."""

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
    is_lab_error(caught.value, code, *values)


def is_lab_error(error: BaseException | None, code: str, *values: object) -> None:
    """The same of an error that was caught by somebody else, as click's runner does."""
    __tracebackhide__ = True
    assert isinstance(error, LabError), error
    said = str(error)
    assert error.code == code, said
    assert all(str(value) in said for value in values), said
