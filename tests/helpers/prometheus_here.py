"""Debian's promtool for a test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

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
