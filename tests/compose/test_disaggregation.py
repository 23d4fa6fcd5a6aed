"""Lab 09 on containers: servers that share nothing but the run folder hand sequences over, and count what they move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machinery import labctl

pytestmark = pytest.mark.night

TIMED = {"apart-wins-below-the-crossing", "apart-loses-above-it", "loading-pays-from-here"}


def test_the_lab_proves_its_counted_verdicts_in_containers(own: Path) -> None:
    labctl(
        *("run", "disaggregation", "--quick", "--runtime", "compose", "--ports", "auto", "--output", "r.json"), root=own
    )
    words = {verdict["name"]: verdict["word"] for verdict in json.loads((own / "r.json").read_text())["verdicts"]}
    assert {words.pop(name) for name in TIMED} <= {"met", "busy"}
    assert len(words) == 8 and set(words.values()) == {"met"}
