"""What the Compose files publish, and what of them Prometheus reads."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import compose_view
import pytest
import yaml
from checkout import ROOT
from listening import beyond_loopback
from machinery import of_its_own
from prometheus_here import prometheus

from labctl.options import Options

__all__ = ["prometheus"]
OBSERVE = ROOT / "docker" / "observe"


def places(services: dict[str, Any]) -> dict[str, set[str]]:
    """Where each service is published; a port without an address is published on all of them."""
    return {name: {port.get("host_ip", "0.0.0.0") for port in one.get("ports", ())} for name, one in services.items()}


@pytest.mark.parametrize("names", ["compose.yaml", "compose.yaml compose.gpu.yaml", "compose.hub.yaml"])
def test_every_port_of_a_compose_file_is_published_on_loopback_alone(names: str) -> None:
    paths = [ROOT / name for name in names.split()]
    found = places(compose_view.services(paths, compose_profiles=["*"], compose_project_directory=ROOT))
    assert any(found.values()) and beyond_loopback(found) == {}


@pytest.mark.parametrize("options", [{}, {"replicas": 2}, {"replicas": 2, "balance": "client"}], ids=str)
def test_every_port_of_a_stack_is_published_on_loopback_alone(tmp_path: Path, options: dict[str, Any]) -> None:
    stack, _ = compose_view.written(of_its_own(tmp_path), "iterative", Options(runtime="compose", **options))
    found = places(compose_view.of_stack(stack.folder.env_file))
    assert found["triton"] and beyond_loopback(found) == {}


@pytest.mark.parametrize(
    "words", ["check config prometheus.yaml", "check rules rules.yaml", "test rules rules.test.yaml"]
)
def test_promtool_finds_configuration_and_rules_good(prometheus: Path, words: str) -> None:
    command = [str(prometheus / "promtool"), *words.split()]
    done = subprocess.run(command, cwd=OBSERVE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_runbook_of_each_alert_is_a_section_that_exists() -> None:
    document = yaml.safe_load((OBSERVE / "rules.yaml").read_text())
    alerts = [rule for group in document["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerts
    for rule in alerts:
        path, _, section = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert section == rule["alert"].lower() and rule["alert"] in headings


@pytest.mark.parametrize("names", ["compose.yaml", "compose.yaml compose.gpu.yaml", "compose.hub.yaml"])
def test_compose_makes_every_image_of_ours_and_asks_no_registry_for_it(names: str) -> None:
    services = compose_view.services(
        [ROOT / name for name in names.split()], compose_profiles=["*"], compose_project_directory=ROOT
    )
    ours = {name: one for name, one in services.items() if one["image"].startswith("labs-")}
    assert [name for name, one in ours.items() if "build" not in one and one.get("pull_policy") != "never"] == []
    targets = {one["build"]["target"] for one in ours.values() if "build" in one}
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE))
    assert targets and targets <= stages


@pytest.mark.parametrize("names", ["compose.yaml", "compose.hub.yaml"])
def test_a_health_check_starts_no_python(names: str) -> None:
    services = compose_view.services([ROOT / names], compose_profiles=["*"], compose_project_directory=ROOT)
    checks = {one["healthcheck"]["test"][1] for one in services.values() if "healthcheck" in one}
    assert checks == {"curl"}
