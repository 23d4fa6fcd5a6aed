"""A Docker engine and checkouts of the tests' own: a person's stacks are not touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from containers import copy_of_the_checkout, labctl, leftovers
from pytest_docker.plugin import get_docker_ip

from labctl.errors import LabError
from labctl.runtimes import docker_engine


@pytest.fixture(scope="session", autouse=True)
def engine() -> docker.DockerClient:
    """A Docker engine. Where LABS_REQUIRE_DOCKER is set its absence is a failure, elsewhere a reason to skip."""
    try:
        client = docker_engine.engine()
        docker_engine.require_compose()
    except LabError as error:
        if os.environ.get("LABS_REQUIRE_DOCKER"):
            pytest.fail(f"LABS_REQUIRE_DOCKER is set: {error}")
        pytest.skip(str(error))
    assert get_docker_ip()
    return client


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A checkout for one test, in which nothing may be left."""
    root = copy_of_the_checkout(tmp_path / "own")
    try:
        yield root
    finally:
        labctl("down", "--all", root=root, check=False)
        assert leftovers(root) == []
