"""What a lab's client is told: where the stack is, what was set, where results go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Context:
    """The content of ``context-<phase>.json``, written by ``labctl run``; paths are as the client sees them."""

    lab: str
    stack: str
    phase: str
    profile: str
    runtime: str
    endpoints: Mapping[str, str]
    settings: Mapping[str, Any]
    quick: bool
    out: Path
    run_dir: Path
    tokenizer_dir: str
    color: bool


def load(path: str) -> Context:
    """Read a context file."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    return Context(**{**data, "out": Path(data["out"]), "run_dir": Path(data["run_dir"])})
