"""``labctl up --replicas 3`` (warm) to READY, against ``labctl up`` of one server, in turn."""

from __future__ import annotations

import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from labctl.workspace import Workspace
from labkit.tables import format_table

STACK, COUNT = "iterative", 3
MOST = 1.5  # the yardstick: times as long


def run(rounds: int) -> dict[str, Any]:
    """Medians of the whole commands; the first round warms up and does not count."""
    root = Workspace.find().root
    ways = {"one": (), f"{COUNT} replicas": ("--replicas", str(COUNT))}
    taken = [{name: _up(root, *words) for name, words in ways.items()} for _ in range(rounds + 1)][1:]
    median = {name: statistics.median(row[name] for row in taken) for name in ways}
    print(format_table([(name, f"{seconds:.2f}") for name, seconds in median.items()], ("up", "seconds"), right=[1]))
    ratio = median[f"{COUNT} replicas"] / median["one"]
    print(f"{'met' if ratio <= MOST else 'not met'}: {ratio:.2f} times as long (at most {MOST})")
    return {"rounds_s": taken, "median_s": median, "ratio": ratio}


def _up(root: Path, *words: str) -> float:
    """Seconds of the whole command."""
    labctl = str(root / ".venv" / "bin" / "labctl")
    began = time.monotonic()
    subprocess.run(
        [labctl, "up", STACK, "--runtime", "local", "--ports", "auto", *words],
        cwd=root,
        check=True,
        capture_output=True,
    )
    took = time.monotonic() - began
    subprocess.run([labctl, "down", STACK], cwd=root, check=True, capture_output=True)
    return took
