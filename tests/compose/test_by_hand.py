"""``docker compose up --wait`` by hand, after ``labctl render``: the same files, and nobody's but the person's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from machinery import labctl, status
from pytest_docker.plugin import Services

from labctl.triton.server_api import call

STACK = "iterative"


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
