"""``labctl up --observe`` in containers: Prometheus, from an image of ours, finds every replica and Envoy by name."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from machinery import ROOT, labctl, leftovers
from waiting import eventually

IMAGE = "labs-test-prometheus"


def test_prometheus_finds_every_replica_and_envoy_and_goes_with_the_stack(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ["docker", "build", "-q", "-t", IMAGE, "-f", "docker/prometheus.Dockerfile", "."]
    subprocess.run(recipe, cwd=ROOT, check=True, capture_output=True)
    monkeypatch.setenv("LABS_PROMETHEUS_IMAGE", IMAGE)
    monkeypatch.setenv("LABS_GRAFANA_IMAGE", "none")  # no registry has to be reached
    words = ["up", "quick", "--runtime", "compose", "--ports", "auto", "--replicas", "2", "--observe"]
    done = labctl(*words, root=own)
    (address,) = re.findall(r"Prometheus: http://(\S+)", done.stdout + done.stderr)
    assert address.startswith("127.0.0.1:")

    def healthy() -> list[str]:
        with urllib.request.urlopen(f"http://{address}/api/v1/targets?state=active", timeout=30) as response:
            targets = json.load(response)["data"]["activeTargets"]
        return sorted(target["labels"]["job"] for target in targets if target["health"] == "up")

    eventually(lambda: healthy() == ["envoy", "triton", "triton"])
    labctl("down", "quick", root=own)
    assert leftovers(own, "quick") == []
    assert not (own / ".labs" / "quick" / "observe").exists()
