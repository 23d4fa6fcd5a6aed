"""What the compose runtime says of machines without a usable engine: a sentence, a remedy, and soon."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT
from lab_errors import lab_error

from labctl.listener import Silent
from labctl.runtimes import docker_engine, processes
from labctl.runtimes.base import REMOVED
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_project import Projects
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Endpoints, Record
from labctl.workspace import Workspace


def fake_docker(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "docker"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("tcp://127.0.0.1:9", "Connection refused"),
        ("tcp://no-such-host.invalid:2375", "not known"),
        ("unix:///nobody/listens.sock", "No such file or directory"),
    ],
)
def test_fault_5_why_an_engine_does_not_answer_is_one_short_sentence_with_its_address(
    address: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with lab_error("docker-missing") as caught:
        docker_engine.engine()
    assert reason in caught.value.why and caught.value.why.endswith(f"({address})")
    assert len(caught.value.why) < 90 and "DOCKER_HOST" in caught.value.remedy


def test_a_machine_without_engine_and_plugin_hears_of_both_and_of_the_script_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_docker(tmp_path, "exit 1", monkeypatch)
    monkeypatch.setattr(docker_engine, "_client", lambda host: FileNotFoundError(2, "No such file or directory"))
    monkeypatch.setenv("HOME", str(tmp_path))  # no context of the docker command
    with lab_error("docker-missing", docker_engine.DEFAULT_SOCKET, "docker compose") as caught:
        ComposeRuntime(Workspace(tmp_path, tmp_path / "cache")).check("cpu")
    script = next(word for word in caught.value.remedy.split() if word.endswith(".sh"))
    assert (ROOT / script).is_file()


@pytest.mark.parametrize(
    ("script", "good"),
    [
        *((f"echo {version}", False) for version in ("2.19.1", "v2.24.3", "1.29.2", "nonsense")),
        *((f"echo {version}", True) for version in ("2.24.4", "v2.26.1-4", "5.0.1")),
        ("exit 1", False),
    ],
)
def test_fault_50_a_compose_plugin_that_is_missing_or_too_old_is_named(
    script: str, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_docker(tmp_path, script, monkeypatch)
    said = script.removeprefix("echo ").removeprefix("v") if "." in script else ""
    with contextlib.nullcontext() if good else lab_error("docker-plugin-missing", said, docker_engine.INSTALL_PACKAGES):
        docker_engine.require_plugin()


@pytest.mark.parametrize("file", ["scripts/docker_engine.sh", "docs/operate/compose.md"])
def test_the_oldest_compose_is_the_same_wherever_it_is_named(file: str) -> None:
    assert ".".join(map(str, docker_engine.COMPOSE_NEEDED)) in (ROOT / file).read_text()


RECORD = Record("one", "lab", "compose", "cpu", {}, ["m"], Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
RUNNING = {"State": {"Status": "running"}}
EXITED: dict[str, Any] = {
    "status": "exited",
    "labels": {docker_engine.SERVICE: "triton"},
    "attrs": {"State": {"Status": "exited", "ExitCode": 137}},
    "logs": lambda: b"",
}
PUBLISHED = {f"{inner}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(inner + 20_000)}] for inner in (8000, 8001, 8002)}


def container(service: str, ports: dict[str, Any]) -> Any:
    return SimpleNamespace(status="running", labels={docker_engine.SERVICE: service}, ports=ports, attrs=RUNNING)


@pytest.mark.parametrize(
    ("balance", "containers", "endpoints"),
    [
        ("", [container("triton", PUBLISHED)], ("28000", "28001", "28002")),
        ("", [container("triton", {"8000/tcp": None})], ("1", "2", "3")),
        ("l7", [container("triton", {}), container("envoy", PUBLISHED)], ("28000", "28001", "28002")),
        ("client", [container("triton", {}), container("envoy", PUBLISHED)], ("28000", "2", "28002")),
    ],
)
def test_a_stack_is_where_the_engine_publishes_it_whatever_its_record_says(
    balance: str, containers: list[Any], endpoints: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "containers", lambda root, stack: containers)
    state = ComposeRuntime(Workspace(tmp_path, tmp_path)).state(replace(RECORD, balance=balance))
    assert tuple(map(str, state.record.endpoints.ports)) == endpoints
    assert (set(state.alive), dict(state.ended), state.balancer_ended) == ({1}, {}, None)


@pytest.mark.parametrize(
    ("containers", "ended"), [([], {1: REMOVED}), ([SimpleNamespace(**EXITED)], {1: "killed by SIGKILL"})]
)
def test_a_container_that_ended_says_how_and_one_that_is_gone_was_removed(
    containers: list[Any], ended: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "containers", lambda root, stack: containers)
    state = ComposeRuntime(Workspace(tmp_path, tmp_path)).state(RECORD)
    assert (state.alive, dict(state.ended), state.removed) == (frozenset(), ended, not containers)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"Status": "running"}, None),
        ({"Status": "running", "Health": {"Status": "starting", "Log": []}}, None),
        ({"Status": "running", "OOMKilled": True}, "OOM-killed"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "OOM-killed"),
        ({"Status": "exited", "ExitCode": 137}, "SIGKILL"),
        ({"Status": "exited", "ExitCode": 137, "Health": {"Status": "unhealthy", "Log": []}}, "SIGKILL"),
        ({"Status": "exited", "ExitCode": 1}, "exit status 1"),
        ({"Status": "running", "Health": {"Status": "unhealthy", "Log": [{"Output": "refused"}]}}, "refused"),
    ],
)
def test_the_end_of_a_container_is_said_in_words(state: dict[str, object], words: str | None) -> None:
    how = docker_engine.how_ended({"State": state})
    assert how is None if words is None else words in str(how)


def test_what_a_command_says_on_stdout_is_progress_where_that_is_asked_for() -> None:
    lines: list[str] = []
    command = Command(["sh", "-c", "echo out; echo err >&2"])
    code, out, tail = processes.run_tool(command, Silent(), lines.append, merged=True)
    assert (code, out, lines, tail) == (0, "", ["out", "err"], ["out", "err"])


@pytest.mark.parametrize(("uid", "mode", "refused"), [(0, 0o700, True), (0, 0o755, False), (1000, 0o700, False)])
def test_a_cache_that_the_server_cannot_look_into_is_refused(
    uid: int, mode: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    monkeypatch.setattr("os.getuid", lambda: uid)
    with lab_error("cache-unreadable-inside", cache) if refused else contextlib.nullcontext():
        Projects(Workspace(tmp_path, cache)).require_usable_paths()


def test_fault_50_the_address_of_the_engine_is_that_of_dockers_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        docker_engine, "_of_context", {"": "", "rootless": "unix:///run/user/7/docker.sock"}.__getitem__
    )
    assert docker_engine.engine_address() == docker_engine.DEFAULT_SOCKET
    monkeypatch.setenv("DOCKER_CONTEXT", "rootless")
    assert docker_engine.engine_address() == "unix:///run/user/7/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert docker_engine.engine_address() == "tcp://127.0.0.1:1"


def test_a_compose_plugin_that_is_slow_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path, "exec /bin/sleep 60", monkeypatch)
    monkeypatch.setattr(docker_engine, "ANSWER_S", 0.1)
    with lab_error("docker-plugin-missing", "did not answer"):
        docker_engine.require_plugin()
