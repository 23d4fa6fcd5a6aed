"""``docker compose up --wait`` by hand, after ``labctl render``: the same files, and nobody's but the person's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machinery import ROOT, copy_of_the_checkout, labctl, status
from pytest_docker.plugin import Services

from labctl.orchestrator import ports
from labctl.readiness import call
from labctl.runtimes import images
from labctl.workspace import Workspace

STACK = "iterative"


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory, snapshot: Path) -> Path:
    root = copy_of_the_checkout(tmp_path_factory.mktemp("by-hand") / "checkout", snapshot)
    labctl("render", STACK, root=root)
    return root


@pytest.fixture(scope="session")
def docker_compose_file(rendered: Path) -> str:
    return str(rendered / "compose.yaml")


@pytest.fixture(scope="session")
def docker_setup(snapshot: Path) -> Iterator[str]:
    """The plain command. Only the image that is there already and free ports are not left at their defaults."""
    free = vars(ports.claim("auto", "127.0.0.1", [])).items()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABS_SERVER_IMAGE", images.server_image(Workspace(snapshot, ROOT), "cpu"))
        for name, endpoint in free:
            patch.setenv(f"LABS_{name.upper()}_PORT", endpoint.rpartition(":")[2])
        yield "up --wait"


def test_the_stack_serves_and_labctl_leaves_it_alone(docker_services: Services, rendered: Path) -> None:
    endpoint = f"127.0.0.1:{docker_services.port_for('triton', 8000)}"
    question = {"text_input": "I have lived in", "max_tokens": 2}

    def answer() -> Any:
        return call(endpoint, "POST", "/v2/models/iterative-gpt2/generate_stream", question, 30)[0]

    assert answer() == 200
    assert status(rendered, STACK)["state"] == "absent"
    assert labctl("down", "--all", root=rendered).stdout == "nothing was up\n"
    assert answer() == 200
    assert list((rendered / ".labs" / STACK / "run").glob("steps-*")), "the server could not write its step log"
