"""The bounds that every right answer to an exercise keeps."""

from __future__ import annotations

from labkit.evidence import bounds
from labsched.step import Step


def test_the_service_gap_is_counted_while_both_tenants_wait() -> None:
    def row(name: str, tokens: int, made: int, waiting: list[str]) -> Step:
        return Step([name], phase="p" if tokens > 1 else "d", tokens=[tokens], made=[made], waiting=waiting)

    tenants = {"1": "a", "2": "b", "3": "a"}
    both = ["2", "3"]
    rows = [row("1", 10, 1, both), row("1", 1, 1, both), row("1", 1, 1, ["3"]), row("2", 4, 1, ["3"])]
    assert bounds.service_gap(rows, tenants) == 10 + 2 + 2  # a prompt of 10, and two new tokens that count twice
    assert bounds.service_gap(rows, {"1": "a", "2": "a", "3": "a"}) == 0
