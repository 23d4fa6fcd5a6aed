"""labctl on a Mac, an ARM machine and WSL, as far as a stand-in for the platform shows it."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from machinery import ROOT

from labctl.doctor.system import system_check
from labctl.runtimes import record
from labctl.stack import ports
from labkit import contention

# Other people's packages are imported first: they would look for their own parts for that system.
MAC = """
import asyncio, ctypes.util, io, multiprocessing, os, pkgutil, platform, socket, sys, importlib, uuid, webbrowser
import click, docker, filelock, grpc, httpx, huggingface_hub, matplotlib.pyplot, numpy, prometheus_client, psutil
import pydantic, requests, rich.console, rich.live, rich.markdown, rich.progress, starlette.applications, tokenizers
import uvicorn, yaml, tritonclient.grpc, tritonclient.http, jinja2, openai

sys.platform = "darwin"
platform.system, platform.machine, platform.release = lambda: "Darwin", lambda: "arm64", lambda: "24.1.0"
platform.libc_ver = lambda *_: ("", "")
for name in ("sched_getaffinity", "pidfd_open", "O_PATH", "memfd_create"):
    if hasattr(os, name):
        delattr(os, name)
opened, bind = io.open, socket.socket.bind

def open_(path, *more, **words):
    if str(path).startswith(("/proc/", "/sys/", "/dev/shm")):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return opened(path, *more, **words)

def bind_(self, address):
    if isinstance(address, str) and address.startswith(chr(0)):
        raise OSError(22, "Invalid argument")
    return bind(self, address)

io.open = open_  # what pathlib opens with
socket.socket.bind = bind_
"""
COMMAND = MAC + "from labctl.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"
IMPORT = (
    MAC
    + """
import labctl, labbuild, labdoor, labkit
for package in (labctl, labbuild, labdoor, labkit):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        # The first two are scripts; the third belongs to the load test, which is not in the light install.
        if not found.name.endswith(("__main__", "predict.player", "locust_users")):
            importlib.import_module(found.name)
"""
)


def on_a_mac(script: str, *arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DOCKER_HOST": "unix:///nowhere", "LABS_CACHE": str(root / "cache")}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=root, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "labs", "model_repos", "src", "compose.yaml", "docker", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_every_module_is_imported_on_a_mac() -> None:
    done = on_a_mac(IMPORT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["list iterative", "exercise start 02a", "render iterative --runtime compose"])
def test_a_command_that_starts_no_server_works_on_a_mac(command: str, checkout: Path) -> None:
    done = on_a_mac(COMMAND, *command.split(), root=checkout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_local_runtime_says_on_a_mac_that_containers_are_needed(checkout: Path) -> None:
    done = on_a_mac(COMMAND, "up", "iterative", "--runtime", "local", root=checkout)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1 and "does not run on darwin arm64" in said and "--runtime compose" in said


def test_doctor_on_a_mac_names_its_system_and_asks_for_docker(checkout: Path) -> None:
    done = on_a_mac(COMMAND, "doctor", root=checkout)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "warn system Darwin arm64" in said and "Docker Desktop, Colima or OrbStack" in said
    assert "/dev/shm" not in said and "libc" not in said
    assert "fail runtime compose" in said


@pytest.mark.parametrize(
    ("system", "machine", "release", "state", "words"),
    [
        ("Linux", "x86_64", "6.1.0-18-amd64", "ok", "Linux x86_64"),
        ("Linux", "x86_64", "5.15.167.4-microsoft-standard-WSL2", "ok", "Linux x86_64 (WSL 2)"),
        ("Linux", "x86_64", "4.4.0-19041-Microsoft", "fail", "Linux x86_64 (WSL 1)"),
        ("Linux", "aarch64", "6.1.0-18-arm64", "ok", "Linux aarch64: labs 02 and 04 ran on ARM, in emulation only"),
        ("Linux", "aarch64", "5.15.167.4-microsoft-standard-WSL2", "ok", "Linux aarch64 (WSL 2)"),
        ("Linux", "riscv64", "6.1.0", "warn", "Linux riscv64: labctl itself works here"),
        (
            "Darwin",
            "arm64",
            "24.1.0",
            "warn",
            "Darwin arm64: labctl itself works here; servers run in containers for linux/arm64",
        ),
    ],
)
def test_doctor_knows_the_system(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, release: str, state: str, words: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "release", lambda: release)
    check = system_check()
    assert (check.state, check.found[: len(words)]) == (state, words)
    assert bool(check.remedy) == (state != "ok")


def test_a_process_is_known_again_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    mine = record.Proc.current()
    assert mine.alive() and not record.Proc(mine.pid, mine.started - 10).alive()


def test_ports_are_picked_where_no_socket_has_an_abstract_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(socket.socket, "bind", lambda self, address: None if address[0] != "\0" else 1 / 0)
    assert len(set(ports.free_ports("127.0.0.1", 3))) == 3


def test_processors_are_counted_where_the_system_does_not_tell_whose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert contention.own_processors() == os.cpu_count()
