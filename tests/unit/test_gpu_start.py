"""What the gpu profile's checklist means for a start, and what a result keeps of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_machine import FULL, machine_fixture, planned, workspace_fixture
from lab_errors import lab_error

from labctl.labs.run import add_gpus
from labctl.listener import Silent
from labctl.manifest.catalog import load_catalog
from labctl.runtimes.record import Options
from labctl.stack.session import Session
from labctl.stack.up import check_machine
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
__all__ = ("machine_fixture", "workspace_fixture")


class Listener(Silent):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


class Compose:
    """Of a runtime, only its name is asked."""

    name = "compose"


def session(workspace: Workspace, listener: Silent) -> Session:
    return Session(workspace, load_catalog(workspace), listener)


def test_fault_22_what_is_missing_stops_a_start_before_anything_is_made(machine: Any, workspace: Workspace) -> None:
    machine(FULL)
    with lab_error("check-failed", "9.4 of 85.5 GB", "tp_size=2"):
        check_machine(session(workspace, Silent()), planned(workspace), Compose())  # type: ignore[arg-type]


def test_a_result_keeps_the_gpus_and_the_release_that_it_was_measured_on(machine: Any) -> None:
    result = {"settings": {"engine": "tensorrt-llm"}, "machine": {"cores": 8}, "metrics": {}}
    found = add_gpus(result, Options("gpu", release="0.17.0.post1"))
    assert found["machine"]["cores"] == 8
    assert found["machine"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert found["machine"]["gpus"][0]["driver"] == "550.54.15"
    assert found["settings"]["release"] == "0.17.0"
    assert "release" not in add_gpus({"settings": {}, "machine": {}}, Options("gpu"))["settings"]


def test_what_may_be_trouble_is_told_before_a_start_goes_on(machine: Any, workspace: Workspace) -> None:
    listener = Listener()
    check_machine(session(workspace, listener), planned(workspace, "0.17.0"), Compose())  # type: ignore[arg-type]
    assert any("the image of 0.17.0 is made for CUDA 12.8, driver 570.86" in text for text in listener.told)
