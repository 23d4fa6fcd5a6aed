"""A machine with NVIDIA GPUs, as far as its commands and its Docker engine tell: for the tests of the checklist."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT

from labctl.catalog import load_catalog
from labctl.doctor.gpu import gpu_checks
from labctl.doctor.machine import DoctorCheck
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import docker_engine
from labctl.workspace import Workspace

A100 = "NVIDIA A100-SXM4-80GB, 8.0, 570.86.10, 81920, 81000"
H100 = "NVIDIA H100 80GB HBM3, 9.0, 570.86.10, 81559, 81000"
FULL = "NVIDIA H100 80GB HBM3, 9.0, 580.82.07, 81559, 9000"
TOKEN = "hf_thisisasecretthatmustnotshow"


class Engine:
    """A Docker engine with these runtimes."""

    def __init__(self, *runtimes: str) -> None:
        self.runtimes = runtimes

    def info(self) -> dict[str, Any]:
        return {"Runtimes": dict.fromkeys(self.runtimes)}

    def version(self) -> dict[str, Any]:
        return {"Version": "28.0.0"}


@pytest.fixture(name="machine")
def machine_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``machine(*GPU lines)``: what nvidia-smi says on this machine, through a command of that name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(docker_engine, "engine", lambda: Engine("runc", "nvidia"))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10**12))
    monkeypatch.setattr("labctl.doctor.gpu.available_memory", lambda: 64 * 10**9)

    def has(*lines: str, status: int = 0) -> None:
        script = folder / "nvidia-smi"
        said = "".join(f"echo '{line}'\n" for line in lines)
        script.write_text(f"#!/bin/sh\n{said}exit {status}\n")
        script.chmod(0o755)

    has(H100)
    return has


@pytest.fixture(name="workspace")
def workspace_fixture(tmp_path: Path) -> Workspace:
    return Workspace(ROOT, tmp_path / "cache")


def planned(workspace: Workspace, stack: str = "inflight-batching", **settings: Any) -> Plan:
    """TensorRT-LLM's plan of a stack with these settings, unless they name another engine."""
    lab, name = load_catalog(workspace).stack(stack)
    own = {"engine": "tensorrt-llm"} if "engine" in lab.declared else {}
    return make_plan(workspace, lab, name, Options("gpu", {**own, **settings}))


def failing(plan: Plan, workspace: Workspace) -> list[DoctorCheck]:
    return [check for check in gpu_checks(plan, "compose", workspace) if check.state == "fail"]
