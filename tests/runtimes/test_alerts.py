"""A replica, a lone server and a balancer are killed, and a real Prometheus fires the alert, on either runtime."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import prometheus_here
import pytest
from killing import kill_front, kill_server
from machinery import labctl
from prometheus_here import alerts, healthy, prometheus
from waiting import eventually

__all__ = ["prometheus"]
STACK = "quick"
Observed = Callable[..., str]
PATIENCE_S = 240.0
pytestmark = [pytest.mark.night, pytest.mark.xdist_group("observe")]


@pytest.fixture
def observed(where: str, own: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Observed:
    """Bring the stack up with that number of replicas and Prometheus, wait until it has scraped them; its address."""
    if where == "compose":
        monkeypatch.setenv("LABS_PROMETHEUS_IMAGE", prometheus_here.image())
        monkeypatch.setenv("LABS_GRAFANA_IMAGE", "none")  # no registry has to be reached
    else:
        monkeypatch.setenv("PATH", f"{request.getfixturevalue('prometheus')}:{os.environ['PATH']}")

    def bring(replicas: int) -> str:
        words = ["--replicas", str(replicas)] if replicas > 1 else []
        done = labctl("up", STACK, "--runtime", where, "--ports", "auto", "--observe", *words, root=own, timeout=600)
        (address,) = re.findall(r"Prometheus: http://(\S+)", done.stdout + done.stderr)
        jobs = sorted(["triton"] * replicas + ["envoy"] * (replicas > 1))
        eventually(lambda: healthy(address) == jobs, PATIENCE_S)
        # What was down while it started is over: an alert from now on is of what the test does.
        eventually(lambda: not alerts(address) | alerts(address, "pending"), PATIENCE_S)
        return address

    return bring


def test_ReplicaDown_fires_when_one_of_two_replicas_is_killed_and_ends_when_it_is_back(
    observed: Observed, own: Path, where: str
) -> None:
    address = observed(2)
    kill_server(own, STACK, where, 2)
    eventually(lambda: "ReplicaDown" in alerts(address), PATIENCE_S)
    assert not alerts(address) & {"ServerDown", "BalancerDown"}, "the other replica serves"
    labctl("restart", STACK, root=own)
    eventually(lambda: "ReplicaDown" not in alerts(address), PATIENCE_S)


def test_ServerDown_fires_when_a_lone_server_is_killed(observed: Observed, own: Path, where: str) -> None:
    address = observed(1)
    kill_server(own, STACK, where)
    eventually(lambda: "ServerDown" in alerts(address), PATIENCE_S)
    assert "BalancerDown" not in alerts(address), "there is none"


def test_BalancerDown_fires_when_envoy_is_killed(observed: Observed, own: Path, where: str) -> None:
    address = observed(2)
    kill_front(own, STACK, where)
    eventually(lambda: "BalancerDown" in alerts(address), PATIENCE_S)
    assert not alerts(address) & {"ReplicaDown", "ServerDown"}, "both servers are up"
