"""What a run says at its end: what was skipped and why; with `--times` where the time went, by file and worker."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

STAGES = ("setup", "call", "teardown")


class Skipped:
    """One line for each reason: pytest's own has one for each test whose fixture skipped it."""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        reasons: dict[str, Counter[str]] = defaultdict(Counter)
        for report in terminalreporter.stats.get("skipped", []):
            said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = said.removeprefix("Skipped: ").partition("\n")[0]
            reasons[reason][str(Path(report.fspath).parent)] += 1
        for reason, folders in reasons.items():
            where = ", ".join(f"{count} in {folder}" for folder, count in sorted(folders.items()))
            terminalreporter.write_line(f"SKIPPED {folders.total()} ({where}): {reason}")


class Timetable:
    """Adds up the reports of all workers, in the process that prints."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.files: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(STAGES, 0.0))
        self.tests: dict[str, set[str]] = defaultdict(set)
        self.workers: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        stage = report.when if report.when in STAGES else "call"  # of a worker that died xdist says "???"
        self.files[file][stage] += report.duration
        self.tests[file].add(report.nodeid)
        self.workers[getattr(report, "worker_id", "this process")] += report.duration
        if report.failed:  # pytest tells at the end, which a run that is ended never reaches
            print(f"\nfailed: {report.nodeid} ({report.when})", file=sys.__stderr__, flush=True)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("times in seconds, longest first")
        write(f"{'file':<52}{'tests':>6}{'setup':>8}{'call':>8}{'end':>8}{'all':>8}")
        for file, spent in sorted(self.files.items(), key=lambda row: -sum(row[1].values())):
            columns = "".join(f"{value:8.1f}" for value in (*(spent[stage] for stage in STAGES), sum(spent.values())))
            write(f"{file:<52}{len(self.tests[file]):6}{columns}")
        for worker, busy in sorted(self.workers.items()):
            write(f"{worker}: busy for {busy:.0f} of {time.monotonic() - self.began:.0f} s")
