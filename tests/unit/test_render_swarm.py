"""``labctl render --target swarm``: Compose's service, without what Swarm refuses and with what it needs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from programs import needs
from rendered_targets import STACKS, composed, rendered, session

from labctl.deploy import swarm
from labctl.listener import Silent
from labctl.runtimes.envoy.config import PLACEHOLDER
from labctl.runtimes.record import Choices
from labctl.stack import targets
from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml

REFUSED = {
    "build",
    "container_name",
    "depends_on",
    "extends",
    "mem_limit",
    "network_mode",
    "pids_limit",
    "profiles",
    "pull_policy",
    "restart",
    "scale",
    "security_opt",
    "shm_size",
    "tmpfs",
}


def document(stack: str, profile: str = "cpu") -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml((rendered(stack, "swarm", profile) / swarm.FILE).read_text())
    return found


@needs("docker compose")
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_image_command_mounts_and_environment_are_those_that_compose_would_run(profile: str) -> None:
    mine, compose = document("iterative", profile)["services"]["triton"], composed("iterative", profile)
    assert (mine["image"], mine["command"], mine["user"]) == (compose["image"], compose["command"], compose["user"])
    assert {key: str(value) for key, value in mine["environment"].items()} == compose["environment"]
    mounts = {mount["target"]: mount for mount in mine["volumes"]}
    assert set(mounts) == {*(mount["target"] for mount in compose["volumes"]), "/tmp", "/dev/shm"}
    assert mounts["/dev/shm"]["tmpfs"]["size"] == int(compose["shm_size"])
    assert [mount["target"] for mount in mine["volumes"] if mount["type"] == "bind" and not mount["read_only"]] == []
    reserved = mine["deploy"]["resources"]["reservations"].get("generic_resources", [])
    assert [one["discrete_resource_spec"]["value"] for one in reserved] == ([1] if profile == "gpu" else [])


def test_templates_that_are_only_in_nvidias_image_are_refused_with_two_ways_to_them(tmp_path: Path) -> None:
    opened = session()
    lab, name = opened.catalog.stack("inflight-batching")
    choices = Choices("gpu", {"engine": "tensorrt-llm"})
    (action,) = targets.render_for_target(opened, lab, name, choices, "swarm", tmp_path / "swarm").actions
    with pytest.raises(LabError, match="no template for") as refused:
        action.do(Silent())
    assert "--templates DIR" in refused.value.remedy
    assert "labctl up inflight-batching --profile gpu" in refused.value.remedy


@pytest.mark.parametrize("stack", STACKS)
def test_nothing_that_swarm_refuses_is_left_and_updates_go_one_by_one(stack: str) -> None:
    services = document(stack)["services"]
    for service in services.values():
        assert not REFUSED & set(service)
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["user"] != "0:0"
        assert service["deploy"]["endpoint_mode"] == "dnsrr"
        assert service["deploy"]["update_config"]["parallelism"] == 1
    assert services["triton"]["deploy"]["update_config"]["order"] == "start-first"
    assert "ports" not in services["triton"]
    assert all(port["mode"] == "host" for port in services["envoy"]["ports"])
    assert all(secret["external"] for secret in document(stack)["secrets"].values())


def test_a_stack_on_every_address_of_its_node_is_guarded_bounded_and_its_logs_end() -> None:
    services = document("iterative")["services"]
    assert services["envoy"]["command"][-2:] == ["labctl.runtimes.envoy.container", "/etc/envoy/envoy.json"]
    assert PLACEHOLDER in (rendered("iterative", "swarm") / "envoy.json").read_text()
    for service in services.values():
        assert service["deploy"]["resources"]["limits"]["memory"] and service["logging"]["options"]["max-size"]
    plain = rendered("iterative", "swarm", guard="false")
    assert PLACEHOLDER not in (plain / "envoy.json").read_text()


@needs("docker")
def test_docker_takes_the_file() -> None:
    file = str(rendered("iterative", "swarm") / swarm.FILE)
    done = subprocess.run(["docker", "stack", "config", "-c", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gnoring" not in done.stderr
