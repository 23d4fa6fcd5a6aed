"""compose.yaml with compose.gpu.yaml over it, as Compose itself reads them, for every stack on the gpu profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import compose_view
import pytest

from labctl.manifest.catalog import load
from labctl.orchestrator.plan import Choices, make_plan
from labctl.orchestrator.up import launch_of
from labctl.runtimes import calls
from labctl.runtimes.base import Endpoints, Record
from labctl.runtimes.compose_projects import Projects
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
STACKS = [stack for lab in load(Workspace(ROOT, ROOT)).labs for stack in lab.stacks]


def services(tmp_path: Path, stack: str, **settings: Any) -> dict[str, Any]:
    """What Compose makes of the files and the variables that ``labctl up --profile gpu`` gives it."""
    workspace = Workspace(ROOT, tmp_path / "cache")
    projects = Projects(workspace)
    lab, name = load(workspace).stack(stack)
    plan = make_plan(workspace, lab, name, Choices("gpu", settings), lambda path: projects.inside(path, server=True))
    record = Record(
        name, lab.folder, "compose", "gpu", plan.settings, plan.stack.models,
        Endpoints("127.0.0.1:8100", "127.0.0.1:8101", "127.0.0.1:8102"),
    )  # fmt: skip
    launch = launch_of(workspace, plan, record)
    override = tmp_path / "override.json"
    override.write_text(json.dumps({"services": calls.services(projects, launch)}).replace("$", "$$"))
    serve = calls.serve(projects, launch)
    build = next(iter(calls.builds(projects, "gpu", plan.image).values()))
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in {**build.env, **serve.env}.items():
            patch.setenv(variable, value)
        return compose_view.services(
            projects.compose_files("gpu", override), compose_profiles=["*"],
            compose_project_name=projects.name(name), compose_project_directory=ROOT,
        )  # fmt: skip


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
    assert triton["build"]["args"]["TRITON_IMAGE"].startswith("nvcr.io/nvidia/tritonserver:")
    mounts = {volume["target"]: volume.get("read_only", False) for volume in triton["volumes"]}
    assert mounts == {"/models": True, "/labs/models": True, "/labs/cache": True, "/labs/run": False}
    assert "--model-repository=/models" in triton["command"]
    assert [port["published"] for port in triton["ports"]] == ["8100", "8101", "8102"]
    assert all(port["host_ip"] == "127.0.0.1" for port in triton["ports"])


def test_the_builder_is_the_server_image_with_a_cache_that_it_can_write(tmp_path: Path) -> None:
    found = services(tmp_path, "inflight-batching")
    builder = found["engine-builder"]
    assert builder["image"] == found["triton"]["image"]
    assert builder["entrypoint"] == ["env"]
    assert builder["working_dir"] == "/tmp"  # with a root file system that is read-only
    for service in ("triton", "engine-builder"):  # the last word on a path is the one that counts
        assert found[service]["tmpfs"][-1] == "/tmp:mode=1777,exec"
    assert builder["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 1
    assert not next(v for v in builder["volumes"] if v["target"] == "/labs/cache").get("read_only")


def test_an_engine_over_two_gpus_reserves_both_and_goes_through_the_launch_script(tmp_path: Path) -> None:
    triton = services(tmp_path, "inflight-batching", tp_size=2)["triton"]
    assert triton["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert triton["entrypoint"] == ["launch-ranks", "/app/scripts/launch_triton_server.py", "2"]
    assert not triton["command"]


def test_plain_down_knows_the_chat_page_and_plain_up_starts_none() -> None:
    """`docker compose down` leaves what belongs to a profile that is not active."""
    found = compose_view.services([ROOT / "compose.yaml"])
    assert set(found) == {"triton", "chat"}
    assert found["chat"]["scale"] == 0
    assert found["chat"]["pull_policy"] == "never"
    assert "build" not in found["chat"]


@pytest.mark.parametrize("engine, twice", [("tensorrt-llm", False), ("llmapi", True)])
def test_only_the_llm_api_is_loaded_twice_to_complete_its_own_configuration(
    tmp_path: Path, engine: str, twice: bool
) -> None:
    workspace = Workspace(ROOT, tmp_path)
    lab, name = load(workspace).stack("llama")
    plan = make_plan(workspace, lab, name, Choices("gpu", {"engine": engine}, release="0.19.0"), str)
    assert ("--disable-auto-complete-config" not in plan.server_args) == twice
