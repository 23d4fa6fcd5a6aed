"""``labctl doctor --workshop`` and ``--json``: the questions of the night before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from labctl.cli.main import cli
from labctl.doctor import checklist, workshop


def test_doctor_as_json_has_every_check_with_its_remedy() -> None:
    found = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)
    assert {"Python", "disk", "runtime local", "ports 8000-8002"} <= {check["name"] for check in found}
    assert all(set(check) == {"name", "state", "found", "remedy"} for check in found)


def test_in_a_class_doctor_does_not_ask_for_a_docker_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checklist, "CLASS_TOKEN", tmp_path)
    asked = CliRunner().invoke(cli, ["doctor", "--json"]).stdout
    assert "runtime compose" in asked
    (tmp_path / "token").touch()
    monkeypatch.setattr(checklist, "CLASS_TOKEN", tmp_path / "token")
    found = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)
    assert not {"runtime compose", "Docker's disk"} & {check["name"] for check in found}


def test_doctor_asks_of_a_workshop_what_decides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "BUDGET_S", 0.1)
    found = json.loads(CliRunner().invoke(cli, ["doctor", "--workshop", "--json"]).stdout)
    assert {"memory", "room", "processors", "time, reference 1.0"} <= {check["name"] for check in found}


def test_a_machine_that_is_too_slow_for_a_workshop_is_warned_of() -> None:
    assert workshop.speed_check(1.0).state == "ok"
    slow = workshop.speed_check(workshop.SLOW + 1)
    assert slow.state == "warn" and "--quick" in slow.remedy


def test_too_little_memory_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.doctor.workshop.available_memory", lambda: 1e9)
    monkeypatch.setattr(workshop, "BUDGET_S", 0.1)
    (memory,) = (check for check in workshop.checks(Path.cwd()) if check.name == "memory")
    assert memory.state == "warn" and "1.0 GB" in memory.found
