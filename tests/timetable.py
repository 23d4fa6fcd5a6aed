"""What `pytest --times` prints: where the time of a run went, by file, and how long each worker was busy."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import pytest

STAGES = ("setup", "call", "teardown")


class Timetable:
    """Adds up the reports of all workers, in the process that prints."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.files: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(STAGES, 0.0))
        self.tests: dict[str, set[str]] = defaultdict(set)
        self.workers: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.files[file][report.when or "call"] += report.duration
        self.tests[file].add(report.nodeid)
        self.workers[getattr(report, "worker_id", "this process")] += report.duration

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("times in seconds, longest first")
        write(f"{'file':<52}{'tests':>6}{'setup':>8}{'call':>8}{'end':>8}{'all':>8}")
        for file, spent in sorted(self.files.items(), key=lambda row: -sum(row[1].values())):
            columns = "".join(f"{value:8.1f}" for value in (*(spent[stage] for stage in STAGES), sum(spent.values())))
            write(f"{file:<52}{len(self.tests[file]):6}{columns}")
        for worker, busy in sorted(self.workers.items()):
            write(f"{worker}: busy for {busy:.0f} of {time.monotonic() - self.began:.0f} s")
