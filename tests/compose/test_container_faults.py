"""The faults that only containers and their engine know."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from checkout import ROOT
from machinery import container, labctl, leftovers, share_server, started, status
from waiting import DEADLINE_S, eventually

from labctl.runtimes import docker_engine, images
from labctl.workspace import Workspace

STACK = "quick"
ON = ("--runtime", "compose", "--ports", "auto")


def failing_up(root: Path, *settings: str, **env: Any) -> str:
    """What an ``up`` says that fails and leaves nothing; it may not wait to the end, which is later than the test's."""
    words = (*settings, "--timeout", "3600", *ON)
    done: subprocess.CompletedProcess[str] = labctl("up", STACK, *words, root=root, check=False, **env)
    assert done.returncode == 1, done.stderr
    assert leftovers(root, STACK) == []
    return done.stderr


def test_fault_12_a_model_that_needs_more_memory_than_there_is_is_named_as_oom_killed(own: Path) -> None:
    assert "OOM-killed" in failing_up(own, "--set", "behaviour=hog", LABS_MEMORY="400m")


class EngineThatDies:
    """A way to the real engine that a test can cut: what labctl then sees is an engine that died.

    Args:
        path: where it listens.
        real: the engine's own address, ``unix://`` or ``tcp://``.
    """

    def __init__(self, path: Path, real: str) -> None:
        self.host, self._real = f"unix://{path}", urlsplit(real)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = self._to_the_engine()
                self._open += [here, there]
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _to_the_engine(self) -> socket.socket:
        if self._real.scheme == "tcp":
            return socket.create_connection((self._real.hostname, self._real.port))
        there = socket.socket(socket.AF_UNIX)
        there.connect(self._real.path)
        return there

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def die(self) -> None:
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineThatDies]:
    real = docker_engine.engine_address()
    if not real.startswith(("unix://", "tcp://")):
        pytest.skip(f"the docker context leads over {real.partition(':')[0]}, which this test cannot relay")
    engine = EngineThatDies(tmp_path_factory.mktemp("e") / "docker.sock", real)
    try:
        yield engine
    finally:
        engine.die()


def test_a_container_of_clients_that_is_killed_is_the_failure_of_the_phase_at_work(own: Path, engine: Any) -> None:
    share_server(own)
    with started(own, "run", STACK, "--set", "client_seconds=60", *ON) as process:
        eventually(lambda: list(own.glob("results/*/*/answer.json")))
        (clients,) = docker_engine.containers(str(own), STACK, "client")
        host = clients.attrs["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not clients.attrs["Config"]["Tty"]
        assert {mount["Destination"] for mount in clients.attrs["Mounts"] if mount["RW"]} == {str(own / "results")}
        clients.kill()
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1, err
    assert "the client of phase only failed" in err and "exit status 137" in err
    assert leftovers(own, STACK) == []


def test_fault_6_and_50_an_engine_that_dies_during_the_wait_ends_it(own: Path, mortal: EngineThatDies) -> None:
    loading = ("--set", "behaviour=slow", "--set", "seconds=3600")
    with started(own, "up", STACK, *loading, *ON, DOCKER_HOST=mortal.host) as process:
        eventually(lambda: (c := container(own, STACK)) and c.status == "running")
        mortal.die()
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1, err
    assert "Docker engine" in err
    assert "Traceback" not in err
    labctl("down", STACK, root=own)
    assert leftovers(own, STACK) == []


def test_fault_21_a_network_that_is_still_in_use_is_named_and_down_may_be_said_again(own: Path, engine: Any) -> None:
    labctl("up", STACK, *ON, root=own)
    network = next(iter(container(own, STACK).attrs["NetworkSettings"]["Networks"]))
    image = container(own, STACK).attrs["Config"]["Image"]
    guest = engine.containers.run(image, ["60"], entrypoint="sleep", network=network, detach=True, remove=True)
    try:
        done = labctl("down", STACK, root=own, check=False)
        assert done.returncode == 1
        assert network in done.stderr and guest.name in done.stderr
    finally:
        guest.kill()
    eventually(lambda: guest.id not in {c.id for c in engine.containers.list(all=True, ignore_removed=True)})
    labctl("down", STACK, root=own)
    assert leftovers(own, STACK) == []
    assert "was not up" in labctl("down", STACK, root=own).stdout


def test_fault_21_the_orphan_of_a_renamed_service_goes_with_the_stack(own: Path, engine: Any) -> None:
    labctl("up", STACK, *ON, root=own)
    found = container(own, STACK)
    labels = {**found.labels, "com.docker.compose.service": "old-name", "labs.service": "old-name"}
    network = next(iter(found.attrs["NetworkSettings"]["Networks"]))
    engine.containers.create(found.attrs["Config"]["Image"], labels=labels, network=network)
    labctl("down", STACK, root=own)
    assert leftovers(own, STACK) == []


def test_what_a_killed_labctl_left_of_its_builder_goes_with_down_all(own: Path) -> None:
    script = "import sys, time; print('begun', file=sys.stderr, flush=True); time.sleep(600)"
    code = (
        "import sys; from pathlib import Path; from machinery import runtime; from labctl.listener import Silent\n"
        "r = runtime(Path(sys.argv[1])); r.prepare(Silent(), 'cpu')\n"
        f"r.tool(Silent(), ['-c', {script!r}])"
    )
    here = ROOT / "tests" / "helpers"
    process = subprocess.Popen([sys.executable, "-c", code, str(own)], cwd=here, start_new_session=True)
    try:
        eventually(lambda: leftovers(own, "builder"), DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    labctl("down", "--all", root=own)
    assert leftovers(own, "builder") == []


def test_fault_22_the_gpu_profile_without_an_nvidia_runtime_is_refused_before_anything_is_made(
    own: Path, engine: Any
) -> None:
    if "nvidia" in engine.info()["Runtimes"]:
        pytest.skip("this engine has an NVIDIA runtime")
    assert "NVIDIA" in failing_up(own, "--profile", "gpu")


@pytest.mark.parametrize(
    ("dockerfile", "words"),
    [
        ("FROM debian:bookworm-slim AS cpu\nRUN echo no such luck && false\n", "no such luck"),
        ("FROM localhost:9/no/such:image AS cpu\n", "localhost:9"),
    ],
)
def test_fault_22_an_image_that_cannot_be_made_is_found_before_any_container(
    own: Path, dockerfile: str, words: str
) -> None:
    (own / "docker" / "Dockerfile").write_text(dockerfile)
    said = failing_up(own)
    assert "cannot be built" in said and words in said
    assert "\n      #" in said.partition("error:")[0], "nothing was told while it was built"


def test_a_stack_of_another_checkout_is_not_seen(own: Path, shared: Path, in_containers: Any) -> None:
    in_containers(STACK)
    assert status(own, STACK)["state"] == "absent"
    labctl("down", "--all", root=own)
    assert status(shared, STACK)["state"] == "ready"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_labctl_that_a_signal_ends_leaves_no_docker_compose(
    tmp_path: Path, snapshot: Path, number: signal.Signals
) -> None:
    """The command and its plugin are two processes."""
    file, project = tmp_path / "compose.yaml", f"killed-{os.getpid()}"
    image = images.client_image(Workspace(snapshot, tmp_path))
    service = {"image": image, "entrypoint": ["sleep", "600"], "stop_grace_period": "1s"}
    file.write_text(json.dumps({"name": project, "services": {"one": service}}))
    code = (
        "import signal, sys; from labctl.listener import Silent; from labctl.runtimes.docker_cli import DockerCall\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "up = DockerCall(lambda docker: docker.compose.up(stream_logs=True), files=[sys.argv[1]])\n"
        "up.run_to_end(Silent(), 'it failed', code='command-failed')"
    )

    def left() -> int:
        every = (one.info["cmdline"] or () for one in psutil.process_iter(["cmdline"]))
        return sum("--file" in words and str(file) in words for words in every)

    try:
        with subprocess.Popen([sys.executable, "-c", code, str(file)]) as labctl_:
            eventually(lambda: left() == 2)
            labctl_.send_signal(number)
        eventually(lambda: left() == 0)
    finally:
        subprocess.run(["docker", "compose", "--project-name", project, "down"], cwd="/", check=False)
