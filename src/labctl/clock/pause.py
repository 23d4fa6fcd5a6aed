"""How long the clock may stand still: Triton's own limits go on meanwhile, and what they take is lost silently."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SHARE = 0.75  # of a limit: who has waited must have its turn before the rest is over
LIMITS = {
    "max_sequence_idle_microseconds": "forgets a sequence that is idle",
    "default_timeout_microseconds": "refuses a request that waits in its queue",
}


@dataclass(frozen=True)
class PauseLimit:
    """The first of Triton's limits to strike. ``why`` is a sentence."""

    limit_s: float
    strikes: str

    @property
    def most_s(self) -> float:
        """Seconds after which a pause ends by itself."""
        return SHARE * self.limit_s

    @property
    def why(self) -> str:
        return f"Triton {self.strikes} for {self.limit_s:,.0f} s"


def pause_limit(repository: Path) -> PauseLimit | None:
    """The limit of a stack, by its models' configurations; None where there is none."""
    limits = [
        PauseLimit(microseconds / 1e6, strikes)
        for path in repository.glob("*/config.pbtxt")
        for setting, strikes in LIMITS.items()
        for microseconds in _values(path, setting)
        if microseconds
    ]
    return min(limits, key=lambda limit: limit.limit_s, default=None)


def _values(path: Path, setting: str) -> list[int]:
    lines = [line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
    return [int(value) for line in lines for value in re.findall(rf"\b{setting}:\s*(\d+)", line)]
