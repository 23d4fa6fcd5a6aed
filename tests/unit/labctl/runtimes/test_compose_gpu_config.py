"""compose.yaml with compose.gpu.yaml over it, as Compose itself reads them, for every stack on the gpu profile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import compose_view
import pytest
from checkout import ROOT
from machinery import of_its_own

from labctl.catalog import load_catalog
from labctl.options import Options
from labctl.runtimes import compose_project
from labctl.runtimes.compose_project import Projects
from labctl.workspace import Workspace

ONLY_CPU = {"vllm-backend"}  # on the gpu profile NVIDIA's image has the backend itself
STACKS = sorted({stack for lab in load_catalog(Workspace(ROOT, ROOT)).labs for stack in lab.stacks} - ONLY_CPU)


def services(tmp_path: Path, stack: str, gpu: str = "", **settings: Any) -> dict[str, Any]:
    """What Compose makes of the files and the variables that ``labctl up --profile gpu`` gives it."""
    written, _ = compose_view.written(of_its_own(tmp_path), stack, Options("gpu", settings, gpu=gpu))
    return compose_view.of_stack(written.folder.env_file)


@pytest.mark.parametrize("stack", STACKS)
def test_the_server_gets_its_gpu_its_memory_its_mounts_and_its_command(tmp_path: Path, stack: str) -> None:
    triton = services(tmp_path, stack)["triton"]
    (device,) = triton["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
    assert int(triton["shm_size"]) == 2 * 2**30
    assert triton["ulimits"]["memlock"] == -1
    assert triton["ulimits"]["stack"] == 64 * 2**20
    assert triton["ulimits"]["fsize"] == -1
    assert triton["image"].startswith("labs-server:gpu-")
    workspace = Workspace(tmp_path / "checkout", tmp_path / "cache")
    folder = workspace.folder(stack)
    seen = {workspace.models: True, workspace.cache: True, folder.repository: True, folder.run_dir(): False}
    mounts = {(volume["source"], volume["target"]): volume.get("read_only", False) for volume in triton["volumes"]}
    assert mounts == {(str(path), str(path)): read_only for path, read_only in seen.items()}
    assert f"--model-repository={folder.repository}" in triton["command"]
    assert [port["target"] for port in triton["ports"]] == [8000, 8001, 8002]
    assert len({port["published"] for port in triton["ports"]}) == 3
    assert all(port["host_ip"] == "127.0.0.1" for port in triton["ports"])


def test_the_builder_is_the_server_image_with_a_cache_that_it_can_write(tmp_path: Path) -> None:
    found = services(tmp_path, "inflight-batching")
    builder = found["engine-builder"]
    assert builder["image"] == found["triton"]["image"]
    assert builder["entrypoint"] == ["env"]
    assert builder["working_dir"] == "/tmp"  # with a root file system that is read-only
    for service in ("triton", "engine-builder"):  # the last word on a path is the one that counts
        assert found[service]["tmpfs"][-1] == "/tmp:mode=1777,exec,size=16g"
    assert builder["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 1
    assert not next(v for v in builder["volumes"] if v["target"] == str(tmp_path / "cache")).get("read_only")


def test_the_chosen_gpu_is_reserved_in_the_place_of_the_first_one(tmp_path: Path) -> None:
    (device,) = services(tmp_path, "inflight-batching", "3")["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["3"]
    assert "count" not in device


@pytest.mark.parametrize(("gpus", "device"), [("", {"count": 2}), ("1,3,5", {"device_ids": ["1", "3"]})])
def test_an_engine_in_two_ranks_gets_two_gpus(tmp_path: Path, gpus: str, device: dict[str, Any]) -> None:
    found = services(tmp_path, "inflight-batching", gpus, tp_size=2)
    (reserved,) = found["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert {name: reserved.get(name) for name in device} == device


def test_the_builder_works_on_the_chosen_gpu(tmp_path: Path) -> None:
    projects = Projects(of_its_own(tmp_path))
    call = compose_project.one_shot(projects, "name", "image", ["trtllm-build"], "gpu", "3")
    builder = compose_view.services(call.files, compose_profiles=["*"])["engine-builder"]
    assert [one["device_ids"] for one in builder["deploy"]["resources"]["reservations"]["devices"]] == [["3"]]


def test_by_hand_plain_up_starts_the_server_alone_and_whatever_asks_it_waits_until_it_is_healthy() -> None:
    plain = compose_view.services([ROOT / "compose.yaml"])
    assert [name for name, one in plain.items() if one.get("scale") != 0] == ["triton"]
    every = compose_view.services([ROOT / "compose.yaml"], compose_profiles=["*"])
    for name in ("client", "openai", "chat"):
        assert every[name]["depends_on"]["triton"]["condition"] == "service_healthy"
    assert "depends_on" not in every["report"]


@pytest.mark.parametrize(("files", "minutes"), [(["compose.yaml"], 6), (["compose.yaml", "compose.gpu.yaml"], 16)])
def test_a_model_that_cannot_load_ends_up_wait_within_minutes(files: list[str], minutes: int) -> None:
    check = compose_view.services([ROOT / name for name in files])["triton"]["healthcheck"]

    def seconds(duration: str) -> int:
        parts = re.findall(r"(\d+)([hms])", duration)
        return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)

    assert seconds(check["start_period"]) + seconds(check["interval"]) * check["retries"] < 60 * minutes
