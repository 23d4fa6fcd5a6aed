"""The chat page as a service of ``compose.yaml``, beside the server that ``docker compose up --wait`` brought up."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from gradio_client import Client
from pytest_docker.plugin import Services
from waiting import DEADLINE_S

from labctl.runtimes import docker_engine, images
from labctl.stack.ports import claim_endpoints
from labctl.triton.server_api import call_triton
from labctl.workspace import Workspace

pytestmark = pytest.mark.night

MODEL = "iterative-gpt2"
PROMPT = "I have lived in"
TOKENS = 5


@pytest.fixture(scope="module")
def page(
    docker_services: Services, docker_compose_project_name: str, rendered: Path, snapshot: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where the page is, and what the engine says of its container, of which nothing is left afterwards."""
    image = images.client_image(Workspace(snapshot, ROOT)).replace("labs-client", "labs-chat")  # of the same sources
    endpoint = claim_endpoints("auto").http
    chosen = {"STACK_CHAT_IMAGE": image, "STACK_CHAT_PORT": endpoint.rpartition(":")[2], **images.build_environment()}

    def compose(*words: str) -> None:
        done = subprocess.run(
            ["docker", "compose", "--project-name", docker_compose_project_name, *words],
            cwd=rendered,
            env={**os.environ, **chosen},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def containers() -> list[Any]:
        labels = [f"com.docker.compose.project={docker_compose_project_name}", "labs.service=chat"]
        found: list[Any] = docker_engine.engine().containers.list(all=True, filters={"label": labels})
        return found

    if not images.exists(image):
        compose("build", "--quiet", "chat")
    try:
        compose("--profile", "chat", "up", "--wait", "--no-build")
        (container,) = containers()
        yield f"http://{endpoint}", container.attrs
    finally:
        compose("rm", "--stop", "--force", "chat")
    assert containers() == []


def test_the_page_continues_a_text_with_what_the_model_says(
    page: tuple[str, dict[str, Any]], docker_services: Services
) -> None:
    client = Client(page[0], verbose=False)
    dials = [0.0, 50, 0.0, -1]  # temperature, top-k, top-p, seed
    text = str(client.submit(PROMPT, MODEL, TOKENS, *dials, api_name="/answer").result(timeout=DEADLINE_S))
    client.close()
    server = f"127.0.0.1:{docker_services.port_for('triton', 8000)}"
    question = {"text_input": PROMPT, "max_tokens": TOKENS}
    _, events = call_triton(server, "POST", f"/v2/models/{MODEL}/generate_stream", question, DEADLINE_S)
    said = [json.loads(line.removeprefix("data: "))["text_output"] for line in events.decode().splitlines() if line]
    assert len(said) == TOKENS
    assert PROMPT + "".join(said) in text
    assert "first token after" in text
    assert f"{TOKENS} tokens in" in text


def test_its_container_may_do_nothing_but_answer_on_loopback(page: tuple[str, dict[str, Any]]) -> None:
    container = page[1]
    host = container["HostConfig"]
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert container["Config"]["User"] not in ("", "root", "0")
    assert not [mount for mount in container["Mounts"] if mount["RW"]]
    published = [one["HostIp"] for every in container["NetworkSettings"]["Ports"].values() for one in every or ()]
    assert published == ["127.0.0.1"]
