"""Debian's Prometheus for a test, and what a Prometheus that runs says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from machinery import engine

IMAGE = "labs-test-prometheus"


def image() -> str:
    """The name of an image of Debian's package, built where it is not there yet."""
    recipe = ["docker", "build", "-q", "-t", IMAGE, "-f", "docker/prometheus.Dockerfile", "."]
    subprocess.run(recipe, cwd=ROOT, check=True, capture_output=True)
    return IMAGE


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Debian's prometheus and promtool: this machine's, or out of an image of ours."""
    if found := shutil.which("promtool"):
        return Path(found).parent
    docker = engine()
    if isinstance(docker, str):
        if os.environ.get("LABS_REQUIRE_DOCKER"):
            pytest.fail(docker)
        pytest.skip(f"no prometheus on this machine, and {docker}")
    folder = tmp_path_factory.mktemp("prometheus")
    command = ["docker", "create", image()]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        for name in ("prometheus", "promtool"):
            subprocess.run(["docker", "cp", f"{made}:/usr/bin/{name}", str(folder)], check=True, capture_output=True)
    finally:
        subprocess.run(["docker", "rm", made], check=True, capture_output=True)
    return folder


@pytest.fixture
def promtool(prometheus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promtool is on the PATH."""
    monkeypatch.setenv("PATH", f"{prometheus}{os.pathsep}{os.environ['PATH']}")


def api(address: str, path: str, **arguments: str) -> Any:
    """The data of an answer of Prometheus' HTTP API."""
    url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    with urllib.request.urlopen(url, timeout=30) as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    return answer["data"]


def query(address: str, expression: str) -> list[dict[str, Any]]:
    """The series that an expression gives now, without those that are no number."""
    found: list[dict[str, Any]] = api(address, "query", query=expression)["result"]
    return [series for series in found if series["value"][1] != "NaN"]


def alerts(address: str, state: str = "firing") -> set[str]:
    """The names of the alerts in that state."""
    return {alert["labels"]["alertname"] for alert in api(address, "alerts")["alerts"] if alert["state"] == state}


def healthy(address: str) -> list[str]:
    """The jobs of all targets that Prometheus has scraped: one that has two targets comes twice."""
    targets = api(address, "targets", state="active")["activeTargets"]
    return sorted(target["labels"]["job"] for target in targets if target["health"] == "up")
