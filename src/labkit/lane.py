"""One server's part of a run: the requests as their clients saw them, and what the scheduler executed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit.records import RequestRecord
from labsched.steplog import StepRecord


@dataclass(frozen=True)
class Lane:
    """The records and steps that a picture or a trace draws under one title. Times are ``time.monotonic()`` seconds."""

    title: str
    records: Sequence[RequestRecord]
    steps: Sequence[StepRecord]

    def to_json(self) -> dict[str, Any]:
        """All but the title, which is the report's affair."""
        return {"records": [record.to_json() for record in self.records], "steps": [asdict(s) for s in self.steps]}

    @classmethod
    def from_json(cls, title: str, data: Mapping[str, Any]) -> Lane:
        """The lane that ``to_json`` wrote; other keys of ``data`` are left alone."""
        return cls(title, [RequestRecord(**r) for r in data["records"]], [StepRecord(**step) for step in data["steps"]])
