"""``docker compose`` by hand: with a stack's file it is labctl's stack; without one, nobody's but a person's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from machinery import labctl, leftovers, runtime, status
from pytest_docker.plugin import Services

from labctl.runtimes import docker_engine
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


def compose(root: Path, stack: str, *words: str, **variables: str) -> str:
    """What ``docker compose --env-file`` says, called from another folder."""
    env_file = root / ".labs" / stack / "compose.env"
    argv = ["docker", "compose", "--env-file", str(env_file), *words]
    env = {**os.environ, **variables}
    done = subprocess.run(argv, cwd="/", env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def hashes(root: Path, stack: str) -> dict[str, str]:
    """Of each server, what it was made of."""
    found = docker_engine.containers(str(root), stack, "triton")
    return {one.id: one.labels["com.docker.compose.config-hash"] for one in found}


@pytest.mark.parametrize("more", [(), ("--replicas", "2")], ids=["one", "replicas"])
def test_with_its_file_docker_compose_does_to_a_stack_what_a_person_expects(own: Path, more: tuple[str, ...]) -> None:
    up = labctl("up", "quick", "--runtime", "compose", "--ports", "auto", *more, root=own)
    assert "docker compose --env-file .labs/quick/compose.env ps" in up.stdout
    before = hashes(own, "quick")
    asked = compose(own, "quick", "config", "--hash", "triton", LABS_CACHE="/nowhere", LABS_HTTP_PORT="1").split()
    assert asked[1] in before.values()
    compose(own, "quick", "up", "--detach")
    assert hashes(own, "quick") == before, "a server was made anew"
    assert "(healthy)" in compose(own, "quick", "ps")
    assert "Started" in compose(own, "quick", "logs", "triton")
    assert compose(own, "quick", "exec", "-T", "triton", "id", "-un").strip()
    assert compose(own, "quick", "run", "--rm", "-T", "client", "-c", "print(6 * 7)").split()[-1] == "42"
    compose(own, "quick", "down")
    assert leftovers(own, "quick") == []


def test_what_is_rendered_can_be_brought_up_by_hand_and_is_labctls(own: Path) -> None:
    labctl("render", "quick", root=own)
    env_file = own / ".labs" / "quick" / "compose.env"
    ports = {f"STACK_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS")}  # 8000 may be somebody's
    compose(own, "quick", "up", "--wait", "--no-build", **ports)
    assert status(own, "quick")["runtime"] == "compose"
    labctl("down", "quick", root=own)
    assert runtime(own).stacks() == set()
    assert not env_file.exists()
