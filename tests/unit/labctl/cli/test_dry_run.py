"""`--dry-run`: what would be run is told exactly, and nothing is made; no Docker, no GPU, no weights are needed."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from golden_releases import GOLDEN
from lab_errors import lab_error
from machinery import of_its_own

from labctl.cli.main import cli

STACK = "inflight-batching"


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the test's own and a cache that does not exist yet."""
    root = of_its_own(tmp_path).root
    monkeypatch.setenv("LABS_ROOT", str(root))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")  # no engine answers
    return tmp_path


def dry(*words: str) -> str:
    """What that command prints with ``--dry-run``: with a GPU in containers. Raises LabError, as it does."""
    env = {"LABS_RUNTIME": "compose"} if "gpu" in words else {}
    return CliRunner().invoke(cli, [*words, "--dry-run"], catch_exceptions=False, env=env).stdout


def shown(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dry("up", STACK, "--json", *arguments))
    return found


def lines(found: dict[str, Any]) -> list[str]:
    return [shlex.join(command["argv"]) for command in found["commands"]]


def test_nothing_is_made(empty: Path) -> None:
    before = sorted(empty.rglob("*"))
    assert shown("--profile", "gpu")["files"]
    assert shown("--runtime", "local")["files"]
    assert sorted(empty.rglob("*")) == before


def test_up_with_openai_shows_the_program_that_serves_it() -> None:
    last = lines(shown("--runtime", "local", "--openai"))[-1]
    assert "-m labdoor --endpoint 127.0.0.1:8001 --models preprocessing,tensorrt_llm,postprocessing,ensemble" in last
    assert "--port 9000" in last


def test_without_the_packages_of_the_openai_api_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.runtimes.door.PACKAGES", ("no_such_package",))
    with lab_error("openai-libraries-missing", "no_such_package"):
        shown("--runtime", "local", "--openai")


def test_the_gpu_profile_pulls_builds_copies_makes_and_starts_in_that_order() -> None:
    found = shown("--profile", "gpu", "--release", "0.17.0.post1")
    told = [
        "docker image pull nvcr.io/nvidia/tritonserver:25.02-trtllm-python-py3",
        " build ",
        " build ",
        " build ",
        "docker create",
        "docker container start --attach",
        ":/app/all_models/inflight_batcher_llm/.",
        "docker container rm",
        "labctl.artifacts pull random:llama-2-7b",
        "convert_checkpoint.py",
        "trtllm-build",
        "up --detach",
    ]
    assert [part in line for part, line in zip(told, lines(found), strict=True)] == [True] * len(told)
    assert "compose runtime" in found["notices"][0]


@pytest.mark.parametrize(("tp_size", "gpus"), [(1, "1 GPU"), (2, "2 GPUs")])
def test_every_container_is_told_with_its_image_and_its_gpus(tp_size: int, gpus: str) -> None:
    found = shown("--profile", "gpu", "--release", "0.17.0", "--set", f"tp_size={tp_size}")
    containers = list(dict.fromkeys(command["container"] for command in found["commands"] if command["container"]))
    made = [line.partition(": ")[0] for line in containers]
    ends = ["-copy-PID", "-engine-builder-PID", "-engine-builder-PID", "-triton-1"]  # the tools' image, the server's
    assert [name.endswith(end) for name, end in zip(made, ends, strict=True)] == [True] * 4
    assert "removed at once" in containers[0]
    assert f", {gpus}, gone when it ends" in containers[2]
    assert f", {gpus}, " in containers[3] and " on 127.0.0.1:8000" in containers[3]
    assert ("runs launch-ranks /app/scripts/launch_triton_server.py 2" in containers[3]) == (tp_size == 2)


def test_an_engine_is_built_in_the_image_that_serves_it() -> None:
    commands = shown("--profile", "gpu", "--release", "0.5.0")["commands"]
    words = ("build.py", "--detach", "labctl.artifacts")
    made = [next(c["container"] for c in commands if word in " ".join(c["argv"])) for word in words]
    build, serve, weights = (container.partition(": ")[2].partition(",")[0] for container in made)
    assert build == serve
    assert weights.startswith("labs-server:cpu-")


def test_builds_and_containers_of_one_command_can_be_pasted_they_read_no_file_that_only_a_run_writes() -> None:
    commands = shown("--profile", "gpu", "--release", "0.17.0")["commands"]
    alone = [c for c in commands if "build" in c["argv"] or "engine-builder" in c["argv"]]
    assert len(alone) == 6
    for command in alone:
        files = [Path(word) for before, word in itertools.pairwise(command["argv"]) if before == "--file"]
        assert files and all(file.is_file() for file in files) and "--env-file" not in command["argv"]
        assert [name for name in command["env"] if name.endswith("_IMAGE")]


def test_the_llm_api_has_templates_of_its_own_and_no_engine() -> None:
    found = shown("--profile", "gpu", "--set", "engine=llmapi")
    text = "\n".join(lines(found))
    assert "/app/all_models/llmapi/." in text
    assert "labctl.artifacts pull random:llama-2-7b" in text
    assert "trtllm-build" not in text
    assert "auto-complete" not in text  # Triton's stays on: the model sets its own decoupled flag


def test_lab_05_leaves_static_batching_out_where_the_llm_api_serves() -> None:
    found = dry("run", "batching", "--profile", "gpu", "--set", "engine=llmapi")
    assert "05-batching-policies/client.py" in found
    assert "static-batching" not in "".join(line for line in found.splitlines() if line.startswith("  $ "))


def test_templates_that_are_given_are_not_copied_out_of_the_image() -> None:
    found = shown("--profile", "gpu", "--release", "0.17.0", "--templates", str(GOLDEN / "0.17.0" / "templates"))
    assert not any("docker create" in line for line in lines(found))
    assert any(name.endswith("repository/tensorrt_llm/config.pbtxt") for name in found["files"])


def test_a_run_takes_each_phases_stack_down_before_the_next_and_prepares_once() -> None:
    found = dry("run", "llama", "--profile", "gpu", "--release", "0.5.0")
    told = [line for line in found.splitlines() if line.startswith("  $ ")]
    steps = [
        word
        for line in told
        for word in ("image pull nvcr", "build.py", "up --detach", "client.py", " down ")
        if word in line
    ]
    assert steps == ["image pull nvcr", "build.py", *["up --detach", "client.py", " down "] * 2]


@pytest.mark.parametrize("profile, killed", [("cpu", True), ("gpu", False)])
def test_a_server_whose_clients_have_ended_is_killed_but_for_one_that_holds_a_gpu(profile: str, killed: bool) -> None:
    found = dry("run", "llama", "--runtime", "compose", "--profile", profile)
    downs = [line for line in found.splitlines() if " down " in line]
    assert downs
    assert {"--timeout 0" in line for line in downs} == {killed}


def test_a_render_shows_the_files_and_writes_none(empty: Path) -> None:
    before = sorted(empty.rglob("*"))
    found = dry("render", "iterative", "--profile", "gpu")
    assert "repository/iterative-gpt2/config.pbtxt" in found
    assert "$ " not in found
    assert sorted(empty.rglob("*")) == before


@pytest.mark.parametrize("lab", ["sequence", "iterative", "llama", "codegen", "batching", "schedulers", "vllm"])
def test_every_lab_has_a_dry_run_on_the_gpu_profile(empty: Path, lab: str) -> None:
    """Only lab 01's native backends need an image of NVIDIA's; lab 06 does with ``engine=tensorrt-llm`` alone."""
    before = sorted(empty.rglob("*"))
    found = dry("run", lab, "--profile", "gpu")
    assert ("nvcr.io/nvidia/tritonserver:" in found) == (lab == "sequence")
    assert "/report.py" in found
    assert sorted(empty.rglob("*")) == before


def test_building_engines_starts_no_server() -> None:
    found = dry("engines", "build", "llama", "--profile", "gpu", "--release", "0.5.0")
    assert "llama/build.py" in found
    assert "--detach" not in found
    assert "-triton-1:" not in found


def test_a_stack_without_an_engine_is_refused_as_it_would_be() -> None:
    with lab_error("engine-none", "iterative"):
        dry("engines", "build", "iterative", "--profile", "gpu")


def test_a_benchmark_shows_its_stack_up_and_down() -> None:
    found = dry("bench", STACK, "--profile", "gpu")
    told = [word for line in found.splitlines() for word in ("up --detach", " down ") if word in line]
    assert told == ["up --detach", " down "]
    assert "results/05-batching-policies/TIME/" in found


def test_a_runtime_that_has_no_tensorrt_llm_is_refused_before_anything_is_told() -> None:
    with lab_error("image-needed"):
        dry("up", STACK, "--profile", "gpu", "--runtime", "local", "--set", "engine=tensorrt-llm")


def test_backends_of_nvidias_image_are_refused_without_it_and_the_way_around_is_named() -> None:
    words = ("up", "sequence", "--profile", "gpu", "--runtime", "local")
    with lab_error("image-needed", "--set backends=python"):
        dry(*words)
    assert "generator_onnx/1/model.py" in dry(*words, "--set", "backends=python")
