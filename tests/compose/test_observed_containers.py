"""``labctl up --observe`` in containers: Prometheus, from an image of ours, finds every replica and Envoy by name."""

from __future__ import annotations

import re
from pathlib import Path

import prometheus_here
import pytest
from machinery import labctl, leftovers
from prometheus_here import healthy
from waiting import eventually

pytestmark = pytest.mark.night


def test_prometheus_finds_every_replica_and_envoy_and_goes_with_the_stack(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABS_PROMETHEUS_IMAGE", prometheus_here.image())
    monkeypatch.setenv("LABS_GRAFANA_IMAGE", "none")  # no registry has to be reached
    words = ["up", "quick", "--runtime", "compose", "--ports", "auto", "--replicas", "2", "--observe"]
    done = labctl(*words, root=own)
    (address,) = re.findall(r"Prometheus: http://(\S+)", done.stdout + done.stderr)
    assert address.startswith("127.0.0.1:")

    eventually(lambda: healthy(address) == ["envoy", "triton", "triton"])
    labctl("down", "quick", root=own)
    assert leftovers(own, "quick") == []
    assert not (own / ".labs" / "quick" / "observe").exists()
