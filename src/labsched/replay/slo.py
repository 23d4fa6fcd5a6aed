"""Limits of latency: a request is good when it meets every one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from labsched.errors import LabError

LIMIT = re.compile(r"(ttft|tpot)<([0-9]+(?:\.[0-9]+)?)(?:ms)?")


@dataclass(frozen=True)
class Slo:
    """Limits in milliseconds of a request that counts as good; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read limits such as "ttft<500ms,tpot<60ms". Raises LabError for anything else."""
        limits: dict[str, float] = {}
        for part in text.replace(" ", "").split(","):
            limit = LIMIT.fullmatch(part)
            if not limit or not float(limit[2]) or limit[1] in limits:
                raise LabError(
                    f"'{part}' is not a limit",
                    "limits are ttft<N and tpot<N in milliseconds, each at most once",
                    '--slo "ttft<500ms,tpot<60ms"',
                    code="slo-invalid",
                )
            limits[limit[1]] = float(limit[2])
        return cls(**limits)

    def __str__(self) -> str:
        limits = (("ttft", self.ttft), ("tpot", self.tpot))
        return ",".join(f"{name}<{limit:.12g}ms" for name, limit in limits if limit is not None)

    def is_met(self, ttft: float, tpot: float) -> bool:
        """Whether a request with these times, in ms, is good. The TPOT of an answer of one token is 0."""
        return (self.ttft is None or ttft <= self.ttft) and (self.tpot is None or tpot <= self.tpot)
