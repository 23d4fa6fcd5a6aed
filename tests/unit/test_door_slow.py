"""What the slow reader's benchmark calls flat, and what it does not."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from machinery import ROOT

sys.path.insert(0, str(ROOT))  # benchmarks/ is no package that anybody installs
from benchmarks.door_slow import Reader, _verdict

OPEN = {"open to the end": 1}


def faults(server: list[float], ends: dict[str, int] = OPEN, engine: float = 0.0) -> list[str]:
    """Of looks every five seconds at which the server has so many MB."""
    looks: list[dict[str, Any]] = [
        {"s": 5.0 * at, "taken": 1, "engine": engine, "door MB": 70.0, "server MB": size, "other": 0.1}
        for at, size in enumerate(server)
    ]
    found: list[str] = _verdict(looks, Reader(1, 0.0, ends=Counter(ends)), [], 0.0)["faults"]
    return found


def test_memory_that_grows_only_at_first_is_flat_and_so_is_a_moments_peak() -> None:
    assert faults([600.0, 620, 632, *[632.0] * 40, 661, *[632.0] * 40]) == []


def test_memory_that_grows_all_the_time_is_named() -> None:
    assert faults([600.0 + at for at in range(100)]) == ["server MB: 628 -> 692"]


def test_a_stream_that_was_cut_is_named() -> None:
    assert faults([600.0] * 50, {"cut: b''": 2}) == ["cut: b'': 2 streams"]


def test_a_reader_that_keeps_up_with_the_engine_proves_nothing() -> None:
    assert "the reader was not slow" in faults([600.0] * 50, engine=16.0)[0]
