"""Lab 09 on containers: servers that share nothing but the run folder hand sequences over, and count what they move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab_programs import unproven
from machinery import labctl

pytestmark = pytest.mark.night


def test_the_lab_proves_its_counted_verdicts_in_containers(own: Path) -> None:
    labctl(
        *("run", "disaggregation", "--quick", "--runtime", "compose", "--ports", "auto", "--output", "r.json"), root=own
    )
    assert unproven("disaggregation", json.loads((own / "r.json").read_text())) == []
