"""Exhibits of the issue museum against the Triton of an image."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from machinery import labctl, started
from waiting import eventually

from labctl.runtimes import docker_engine, images
from labctl.workspace import Workspace

pytestmark = pytest.mark.night


@pytest.fixture
def image(own: Path) -> str:
    return images.server_image(Workspace(own, own / "cache"), "cpu")


def containers(root: Path) -> list[str]:
    return [container.name for container in docker_engine.containers(str(root)) if "museum" in container.name]


@pytest.mark.parametrize(("number", "measured"), [("core#425", "27974191445704707"), ("server#8267", "SIGFPE")])
def test_an_exhibit_runs_against_the_server_of_an_image(number: str, measured: str, own: Path, image: str) -> None:
    done = labctl("reproduce", number, "--kills", "--json", "--image", image, root=own)
    (visit,) = json.loads(done.stdout)
    assert visit["verdict"] == "reproduces"
    assert measured in visit["measured"]
    assert containers(own) == []


def test_the_container_of_a_killed_command_goes_with_the_next_one(own: Path, image: str) -> None:
    with started(own, "reproduce", "server#8358", "--image", image) as process:
        (left,) = eventually(lambda: containers(own))
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    labctl("reproduce", "server#6366", "--image", image, root=own)
    assert left not in containers(own)


def test_an_image_that_is_not_here_is_named_with_the_command_that_gets_it(own: Path) -> None:
    done = labctl("reproduce", "core#425", "--image", "no-such-image:1", root=own, check=False)
    assert done.returncode == 1
    assert "docker pull no-such-image:1" in done.stderr
