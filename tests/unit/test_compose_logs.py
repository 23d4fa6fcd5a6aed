"""The log of a stack with a guard is that of two containers."""

from __future__ import annotations

from collections.abc import Iterator

from lab_errors import lab_error

from labctl.runtimes.processes import as_they_come
from labkit.errors import LabError


def test_two_streams_are_followed_to_the_end_of_both() -> None:
    assert sorted(as_they_come([iter(["a", "b"]), iter(["c"])])) == ["a", "b", "c"]


def test_what_one_stream_raises_is_not_lost() -> None:
    def broken() -> Iterator[str]:
        yield "first"
        raise LabError("the engine is gone", code="docker-silent")

    with lab_error("docker-silent"):
        list(as_they_come([broken(), iter([])]))
