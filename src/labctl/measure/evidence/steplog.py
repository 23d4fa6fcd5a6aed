"""The reader of the step logs that our models write (see ``labserve.steplog``)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Step:
    """One execution. ``began`` and ``ended`` are time.monotonic() seconds; ``more`` the model's own counts."""

    began: float
    ended: float
    model: str
    instance: str
    ids: tuple[str, ...]
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return len(self.ids)


def read(run_dir: Path, model: str = "", since: float = 0.0) -> list[Step]:
    """Every step of a run folder (of one model), in order of time; a last line that is cut off is left out."""
    steps = []
    for path in sorted(run_dir.glob("steps-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                data = json.loads(line)
            except ValueError:
                continue
            ended, lasted = data.pop("t"), data.pop("dur")
            step = Step(ended - lasted, ended, data.pop("model"), data.pop("instance"), tuple(data.pop("ids")), data)
            if model in ("", step.model) and step.began >= since:
                steps.append(step)
    return sorted(steps, key=lambda step: step.began)
