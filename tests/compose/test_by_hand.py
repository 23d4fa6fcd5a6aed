"""``docker compose`` by hand: with a stack's file it is labctl's stack; without one, nobody's but a person's."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from machinery import labctl, leftovers, names_left, status
from pytest_docker.plugin import Services
from waiting import DEADLINE_S, eventually

from labctl.runtimes import docker_engine
from labctl.stack.ports import claim_endpoints
from labctl.triton.server_api import call_triton

STACK = "iterative"


def test_the_stack_serves_and_labctl_leaves_it_alone(docker_services: Services, rendered: Path) -> None:
    endpoint = f"127.0.0.1:{docker_services.port_for('triton', 8000)}"
    question = {"text_input": "I have lived in", "max_tokens": 2}

    def answer() -> Any:
        return call_triton(endpoint, "POST", "/v2/models/iterative-gpt2/generate_stream", question, DEADLINE_S)[0]

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
    """Of each container, what it was made of."""
    found = docker_engine.containers(str(root), stack)
    return {one.id: one.labels["com.docker.compose.config-hash"] for one in found}


@pytest.mark.parametrize("more", [(), ("--replicas", "2")], ids=["one", "replicas"])
def test_with_its_file_docker_compose_does_to_a_stack_what_a_person_expects(own: Path, more: tuple[str, ...]) -> None:
    up = labctl("up", "quick", "--runtime", "compose", "--ports", "auto", *more, root=own)
    assert "docker compose --env-file .labs/quick/compose.env ps" in up.stdout
    before = hashes(own, "quick")
    asked = compose(own, "quick", "config", "--hash", "triton", LABS_CACHE="/nowhere", LABS_HTTP_PORT="1").split()
    assert asked[1] in before.values()
    compose(own, "quick", "up", "--detach")
    assert hashes(own, "quick") == before, "a container was made anew"
    eventually(lambda: "(healthy)" in compose(own, "quick", "ps"))  # Docker asks less often than labctl
    assert "Started" in compose(own, "quick", "logs", "triton")
    assert compose(own, "quick", "exec", "-T", "triton", "id", "-un").strip()
    assert "42" in compose(own, "quick", "run", "--rm", "-T", "client", "python", "-c", "print(6 * 7)").split()
    compose(own, "quick", "down")
    assert leftovers(own, "quick") == []


def test_the_openai_api_of_labctl_is_not_made_anew_by_up_and_goes_with_down(own: Path) -> None:
    labctl("up", STACK, "--runtime", "compose", "--ports", "auto", "--openai", root=own)
    before = hashes(own, STACK)
    assert len(before) == 2
    compose(own, STACK, "up", "--detach")
    assert hashes(own, STACK) == before
    compose(own, STACK, "down")
    assert leftovers(own, STACK) == []


def test_what_is_rendered_can_be_brought_up_by_hand_and_is_labctls(own: Path) -> None:
    labctl("render", "quick", "--runtime", "compose", root=own)
    env_file = own / ".labs" / "quick" / "compose.env"
    ports = {f"STACK_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS")}  # 8000 may be somebody's
    compose(own, "quick", "up", "--wait", "--no-build", **ports)
    assert status(own, "quick")["runtime"] == "compose"
    labctl("down", "quick", root=own)
    assert names_left(own) == set()
    assert not env_file.exists()


def rendered_for_hand(root: Path, stack: str, *settings: str, **change: Any) -> None:
    """A stack's files, on free ports, with another text in the place of some in its compose.json."""
    labctl("render", stack, "--runtime", "compose", *settings, root=root)
    values, override = (root / ".labs" / stack / name for name in ("compose.env", "compose.json"))
    ports = vars(claim_endpoints("auto"))
    lines = [line for line in values.read_text().splitlines() if not line.startswith("STACK_") or "_PORT=" not in line]
    lines += [f"STACK_{name.upper()}_PORT={endpoint.rpartition(':')[2]}" for name, endpoint in ports.items()]
    values.write_text("\n".join([*lines, "STACK_OPENAI_PORT=0"]))
    found = json.loads(re.sub("!override ", "", override.read_text()))
    found["services"]["triton"] |= change
    override.write_text(json.dumps(found))


def test_the_door_waits_until_the_server_is_healthy(own: Path) -> None:
    rendered_for_hand(own, STACK)
    compose(own, STACK, "--profile", "openai", "up", "--wait", "--no-build")
    labctl("down", STACK, root=own)


def test_a_model_that_cannot_load_ends_up_wait(own: Path) -> None:
    rendered_for_hand(own, "quick", "--set", "behaviour=refuse", healthcheck={"start_period": "1s"})
    with pytest.raises(AssertionError, match="unhealthy"):
        compose(own, "quick", "up", "--wait", "--no-build", "triton")
    labctl("down", "quick", root=own)
