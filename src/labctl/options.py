"""What a person asked for on the command line; nothing follows from it here (plan.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = {"cpu": 180.0, "gpu": 900.0}  # by profile, where a person says nothing
LOOPBACK = "127.0.0.1"
TRITON_PORTS = "8000,8001,8002"  # for HTTP, gRPC and metrics
OF_PLAN = ("profile", "set", "templates", "gpu")


@dataclass(frozen=True)
class Options:
    """The options of ``labctl up``, each by the name that it has on the command line.

    The first four (``OF_PLAN``) are those of ``render`` too: a plan follows from them, whatever starts it.
    """

    profile: str = "cpu"
    set: Mapping[str, Any] = field(default_factory=dict)
    templates: Path | None = None
    gpu: str | None = None  # numbers or UUIDs with commas between, as CUDA_VISIBLE_DEVICES names them
    runtime: str | None = None  # left open: local, or where the stack runs
    ports: str = TRITON_PORTS
    timeout: float | None = None
    client_shm: bool = False
    replicas: int | None = None
    balance: str | None = None

    @property
    def of_plan(self) -> dict[str, Any]:
        """The options that determine a plan."""
        return {name: getattr(self, name) for name in OF_PLAN}

    @property
    def patience(self) -> float:
        """Seconds to wait until every model answers."""
        return PATIENCE_S[self.profile] if self.timeout is None else self.timeout
