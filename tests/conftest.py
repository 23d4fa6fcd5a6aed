"""What all tests share: a home of their own, no trace of the person's environment, and Docker where it is needed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import docker
import machinery
import pytest

from labctl.listener import Silent
from labctl.runtimes.actions import carry_out

ROOT = Path(__file__).resolve().parents[1]
# A shell's background job ignores Ctrl-C, and so would every process that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Packages are installed uncompiled: every labctl that a test runs would compile what it imports anew (2 s each).
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees or changes the person's cache, token or Docker settings."""
    for name in ("HF_TOKEN", "HF_ENDPOINT", "DOCKER_HOST", "NO_COLOR", "LABS_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of weights for the whole session (LABS_TEST_CACHE keeps one between sessions)."""
    # A folder in pytest's, which is the caller's alone: a server in a container may be nobody.
    folder = Path(os.environ.get("LABS_TEST_CACHE") or tmp_path_factory.mktemp("cache") / "labs")
    folder.mkdir(exist_ok=True)
    os.environ["LABS_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    """A Docker engine. Where LABS_REQUIRE_DOCKER is set its absence is a failure, elsewhere a reason to skip."""
    client = machinery.engine()
    if isinstance(client, str):
        if os.environ.get("LABS_REQUIRE_DOCKER"):
            pytest.fail(f"LABS_REQUIRE_DOCKER is set, but: {client}")
        pytest.skip(client)
    return client


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as it is now: whoever goes on working in it does not disturb the tests."""
    return machinery.copy_of_the_checkout(tmp_path_factory.mktemp("snapshot") / "checkout")


@pytest.fixture(scope="session")
def images(engine: docker.DockerClient, snapshot: Path) -> None:
    """The images of this checkout's sources, built unless they are there (the first time takes minutes)."""
    carry_out(machinery.runtime(snapshot).prepare("cpu"), Silent())
