"""What a test knows of a stack that is up for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LabServer:
    """A stack that is up. Endpoints are ``host:port``."""

    http: str
    grpc: str
    metrics: str
    run_dir: Path
    log_file: Path
    settings: dict[str, Any]
