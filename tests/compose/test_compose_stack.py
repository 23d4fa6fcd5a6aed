"""Lab 02 in real containers: it answers, it is locked down, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from containers import eventually, labctl, leftovers, server, status

from labctl.readiness import call

STACK = "iterative"
QUESTION = {"text_input": "I have lived in Seoul", "max_tokens": 3}


def up(root: Path, *arguments: str, **env: str) -> None:
    labctl("up", STACK, "--runtime", "compose", "--ports", "auto", *arguments, root=root, **env)


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    """labctl in a process group of its own, as a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "labctl", *arguments, "--runtime", "compose", "--ports", "auto"],
        cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def test_a_stack_answers_on_loopback_and_goes_without_a_trace(own: Path) -> None:
    up(own)
    shown = status(own)
    assert (shown["state"], shown["runtime"]) == ("ready", "compose")
    code, body = call(shown["endpoints"]["http"], "POST", "/v2/models/iterative-gpt2/generate_stream", QUESTION, 30)
    assert code == 200 and b"text_output" in body
    labctl("down", STACK, root=own)
    assert leftovers(own) == []
    labctl("down", STACK, root=own)  # a second one is harmless


def test_the_server_is_locked_down_and_knows_no_token(own: Path) -> None:
    up(own, HF_TOKEN="hf_secret_of_the_person")
    attributes = server(own).attrs
    host = attributes["HostConfig"]
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and host["Init"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert not attributes["Config"]["User"].startswith("0")
    assert {binding["HostIp"] for ports in host["PortBindings"].values() for binding in ports} == {"127.0.0.1"}
    writable = {mount["Destination"] for mount in attributes["Mounts"] if mount["RW"]}
    assert writable == {"/labs/run"}
    assert host["ShmSize"] == 256 * 2**20
    assert "hf_secret_of_the_person" not in json.dumps(attributes)


def test_up_names_a_server_that_was_killed(own: Path) -> None:
    process = start(own, "up", STACK, "--set", "model=random:gpt2")
    container = eventually(lambda: (c := server(own)) and c.status == "running" and c, 120)
    container.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "SIGKILL" in err, err
    assert leftovers(own) == []


def test_ctrl_c_ends_a_run_with_130_and_takes_it_down(own: Path) -> None:
    process = start(own, "run", STACK, "--quick")
    eventually(lambda: server(own), 120)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert leftovers(own) == []


def test_sigterm_ends_a_run_with_143_and_leaves_nothing(own: Path) -> None:
    process = start(own, "run", STACK, "--quick")
    eventually(lambda: server(own), 120)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert leftovers(own) == []


def test_what_a_killed_run_left_is_swept_by_the_next_command(own: Path) -> None:
    process = start(own, "run", STACK, "--quick")
    eventually(lambda: (c := server(own)) and c.status == "running", 120)
    process.kill()
    process.communicate()
    up(own)
    assert status(own)["state"] == "ready"


def test_a_taken_port_is_named_before_anything_is_made(own: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = labctl(
            "up", STACK, "--runtime", "compose", "--ports", f"{port},{port + 1},{port + 2}", root=own, check=False
        )
    assert done.returncode == 1 and str(port) in done.stderr and "--ports auto" in done.stderr
    assert leftovers(own) == []


def test_the_gpu_profile_is_refused_before_anything_is_made(own: Path, engine: object) -> None:
    if "nvidia" in engine.info()["Runtimes"]:  # type: ignore[attr-defined]
        pytest.skip("this engine has an NVIDIA runtime")
    done = labctl("up", STACK, "--runtime", "compose", "--profile", "gpu", root=own, check=False)
    assert done.returncode == 1 and "NVIDIA" in done.stderr
    assert leftovers(own) == []


def test_an_image_that_cannot_be_built_is_found_before_any_container(own: Path) -> None:
    (own / "docker" / "server.cpu.Dockerfile").write_text("FROM debian:bookworm-slim\nRUN echo no such luck && false\n")
    done = labctl("up", STACK, "--runtime", "compose", "--ports", "auto", root=own, check=False)
    assert done.returncode == 1 and "cannot be built" in done.stderr and "no such luck" in done.stderr
    assert leftovers(own) == []


def test_the_orphan_of_a_renamed_service_goes_with_the_stack(own: Path, engine: object) -> None:
    up(own)
    found = server(own)
    labels = {**found.labels, "com.docker.compose.service": "old-name", "labs.service": "old-name"}
    network = next(iter(found.attrs["NetworkSettings"]["Networks"]))
    engine.containers.create(found.attrs["Config"]["Image"], labels=labels, network=network)  # type: ignore[attr-defined]
    labctl("down", STACK, root=own)
    assert leftovers(own) == []


def test_the_whole_lab_runs_in_containers_and_its_results_are_the_callers(own: Path) -> None:
    done = labctl("run", STACK, "--quick", "--runtime", "compose", "--ports", "auto", root=own)
    folder = next((own / "results" / "02-iterative-scheduling").iterdir())
    assert (folder / "result.json").stat().st_uid == os.getuid(), done.stderr
    assert leftovers(own) == []
