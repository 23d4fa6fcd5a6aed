"""What a process may use of its machine."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from labctl import limits

STAT = "anon 7\ninactive_file {kept}\ntotal_inactive_file {kept}\n"
HERE = 8 * 10**9


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of 16 processors with 8 GB of free memory."""
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=HERE))


@pytest.mark.parametrize(
    ("quota", "period", "count"),
    [("200000", "100000", 2), ("150000", "100000", 1), ("50000", "100000", 1), ("9900000", "100000", 16)],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_limits_the_processors_to_the_whole_ones(
    tmp_path: Path, version: int, quota: str, period: str, count: int
) -> None:
    if version == 2:
        (tmp_path / "cpu.max").write_text(f"{quota} {period}\n")
    else:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (tmp_path / "cpu" / "cpu.cfs_period_us").write_text(f"{period}\n")
    assert limits.processors() == count


@pytest.mark.parametrize(("limit", "free"), [("4000000000", 3_200_000_000), ("9223372036854771712", HERE), ("100", 0)])
@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_leaves_what_it_has_not_used_but_for_files(
    tmp_path: Path, version: int, limit: str, free: int
) -> None:
    names = ("memory.max", "memory.current", "memory.stat")
    if version == 1:
        (tmp_path / "memory").mkdir()
        names = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")
    for name, text in zip(names, (limit, "1000000000", STAT.format(kept=200_000_000)), strict=True):
        (tmp_path / name).write_text(f"{text}\n")
    assert limits.available_memory() == free


@pytest.mark.parametrize("text", ["max 100000", "-1", "", "two", "\xff"])
def test_without_a_limit_that_can_be_read_there_is_the_machine(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.max").write_text(text)
    (tmp_path / "memory.max").write_text(text.split(" ", maxsplit=1)[0])
    (tmp_path / "memory.current").write_text("5")
    assert (limits.processors(), limits.available_memory()) == (16, HERE)
