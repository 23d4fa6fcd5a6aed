"""What the compose runtime says of machines without a usable engine: a sentence, a remedy, and soon."""

from __future__ import annotations

import contextlib
import http.server
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.listener import Silent
from labctl.runtimes import docker_engine, processes
from labctl.runtimes.actions import Command
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_projects import Projects
from labctl.workspace import Workspace


def fake_docker(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "docker"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_dead_docker_host_is_named_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(LabError) as caught:
        docker_engine.engine()
    assert time.monotonic() - began < 20
    assert "no Docker engine answers" in caught.value.what and "127.0.0.1:9" in caught.value.remedy


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers every question with what the test put into ``said``."""

    said = b"[]"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.said)))
        self.end_headers()
        self.wfile.write(self.said)

    def address_string(self) -> str:
        return "a socket of this machine"

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Engine]]:
    place = tmp_path / "engine.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
    with socketserver.UnixStreamServer(str(place), type("Fake", (Engine,), {})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.RequestHandlerClass  # type: ignore[misc]
        server.shutdown()
        thread.join()


def test_an_engine_with_nothing_of_ours_is_not_asked_through_the_sdk(
    listening: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> None:
        raise LabError("the SDK was used")

    monkeypatch.setattr(docker_engine, "engine", never)
    assert docker_engine.containers("/checkout", "iterative", "triton") == docker_engine.networks("/checkout") == []
    listening.said = b'[{"Id": "1"}]'
    with pytest.raises(LabError, match="the SDK was used"):
        docker_engine.containers("/checkout", "iterative", "triton")


def test_rendering_where_no_engine_listens_imports_nothing_large(tmp_path: Path) -> None:
    code = """
import sys
from labctl.repository import schema
from labctl.runtimes import docker_engine
assert schema.parse("config.pbtxt", 'name: "m"')[0].name == "m"
try:
    docker_engine.containers("/checkout")
except Exception as error:
    assert "no Docker engine answers" in str(error), error
assert not {"docker", "grpc", "numpy"} & set(sys.modules)
import tritonclient.grpc
assert tritonclient.grpc.model_config_pb2 is schema._schema()
"""
    env = {"DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", ["2.19.1", "v2.5.0", "1.29.2"])
def test_a_compose_that_is_too_old_is_named(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path, f"echo {version}", monkeypatch)
    with pytest.raises(LabError, match=version.removeprefix("v")):
        docker_engine.require_compose()


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense"])
def test_a_missing_compose_plugin_is_named(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path, script, monkeypatch)
    with pytest.raises(LabError, match="there is no docker compose"):
        docker_engine.require_compose()


@pytest.mark.parametrize("version", ["2.20.0", "v2.26.1-4", "5.0.1"])
def test_a_new_enough_compose_is_accepted(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path, f"echo {version}", monkeypatch)
    docker_engine.require_compose()


@pytest.mark.parametrize(
    ("state", "restarts", "words"),
    [
        ({"Status": "running"}, 0, None),
        ({"Status": "running", "Health": {"Status": "starting", "Log": []}}, 0, None),
        ({"Status": "running", "OOMKilled": True}, 0, "OOM-killed"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, 0, "OOM-killed"),
        ({"Status": "exited", "ExitCode": 137}, 0, "SIGKILL"),
        ({"Status": "exited", "ExitCode": 137, "Health": {"Status": "unhealthy", "Log": []}}, 0, "SIGKILL"),
        ({"Status": "exited", "ExitCode": 1}, 0, "exit status 1"),
        ({"Status": "restarting", "ExitCode": 3}, 0, "crash loop, last time with exit status 3"),
        ({"Status": "running"}, 2, "crash loop"),
        ({"Status": "running", "Health": {"Status": "unhealthy", "Log": [{"Output": "refused"}]}}, 0, "refused"),
    ],
)
def test_the_end_of_a_container_is_said_in_words(state: dict[str, object], restarts: int, words: str | None) -> None:
    how = docker_engine.how_ended({"State": state, "RestartCount": restarts})
    assert how is None if words is None else words in str(how)


@pytest.mark.parametrize(("merged", "heard", "kept"), [(False, ["err"], "out\n"), (True, ["out", "err"], "")])
def test_what_a_command_says_on_stdout_is_progress_where_that_is_asked_for(
    merged: bool, heard: list[str], kept: str
) -> None:
    lines: list[str] = []
    code, out, tail = processes.run_tool(
        Command(["sh", "-c", "echo out; echo err >&2"]), Silent(), lines.append, merged=merged
    )
    assert (code, out, lines, tail) == (0, kept, heard, heard)


def test_paths_are_those_of_the_mounts(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, tmp_path / "cache")
    runtime = ComposeRuntime(workspace)
    assert runtime.server_path(workspace.run_dir("s") / "a.jsonl") == "/labs/run/a.jsonl"
    assert runtime.server_path(workspace.weights_cache / "x") == "/labs/cache/weights/x"
    assert runtime.server_path(workspace.models / "tiny") == "/labs/models/tiny"
    assert runtime.client_path(workspace.results_dir("l") / "1") == "/labs/results/l/1"
    assert runtime.client_path(workspace.labs / "l" / "client.py") == "/labs/checkout/labs/l/client.py"
    with pytest.raises(LabError, match="cannot see"):
        runtime.server_path(Path("/somewhere/else"))


@pytest.mark.parametrize(("uid", "mode", "refused"), [(0, 0o700, True), (0, 0o755, False), (1000, 0o700, False)])
def test_a_cache_that_the_server_cannot_look_into_is_refused(
    uid: int, mode: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    monkeypatch.setattr("os.getuid", lambda: uid)
    with pytest.raises(LabError, match=str(cache)) if refused else contextlib.nullcontext():
        Projects(Workspace(tmp_path, cache)).require_readable_cache()
