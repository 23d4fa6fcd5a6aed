"""``labctl render --target swarm`` on a real engine: deployed, asked, updated under load, removed."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker
import gpt2_streams
import pytest
from machinery import copy_of_the_checkout, labctl, runtime
from tritonclient.utils import InferenceServerException
from waiting import eventually

from labctl.listener import Silent
from labctl.stack.ports import claim_endpoints

PATIENCE_S = 240.0
NAME = f"labs-test-{os.getpid()}"
OF_THE_STACK: dict[str, Any] = {"label": f"com.docker.stack.namespace={NAME}"}
# Swarm is the engine's, not a test's: nobody else's containers come and go meanwhile.
pytestmark = pytest.mark.xdist_group("swarm")


@dataclass(frozen=True)
class Deployed:
    """A stack's endpoints, and the headers with its token."""

    http: str
    grpc: str
    headers: Mapping[str, str]


def swarm(*words: str, check: bool = True, **more: Any) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, timeout=120, **more)
    assert done.returncode == 0 or not check, f"docker {' '.join(words)}\n{done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def deployed(engine: docker.DockerClient, snapshot: Path, tmp_path: Path) -> Iterator[Deployed]:
    """The stack ``iterative`` on a Swarm of one node. Nothing of it is left afterwards."""
    if engine.info()["Swarm"]["LocalNodeState"] != "inactive":
        pytest.skip("this engine is in somebody's swarm")
    runtime(snapshot).prepare(Silent(), "cpu")
    root = copy_of_the_checkout(tmp_path / "checkout", snapshot)
    folder = tmp_path / "deploy"
    labctl("render", "iterative", "--target", "swarm", "--output", str(folder), root=root)
    where = vars(claim_endpoints("auto", []))
    variables = dict(word.split("=", 1) for word in shlex.split((folder / "stack.env").read_text()))
    variables |= {f"LABS_{name.upper()}_PORT": end.rpartition(":")[2] for name, end in where.items()}
    headers = {"authorization": f"Bearer {(folder / 'token').read_text()}"}
    stack = Deployed(where["http"], where["grpc"], headers)
    swarm("swarm", "init", "--advertise-addr", "127.0.0.1", "--listen-addr", "127.0.0.1")
    try:
        words = ("--detach=true", "--resolve-image", "never", "-c", str(folder / "stack.yaml"))
        swarm("stack", "deploy", *words, NAME, env={**os.environ, **variables})
        eventually(lambda: replicas() == {"triton": "2/2", "envoy": "1/1", "openai": "0/0"}, PATIENCE_S)
        eventually(lambda: answers(stack), PATIENCE_S)
        yield stack
        swarm("stack", "rm", NAME, check=False)  # it fails where its network goes before it asks for that
        eventually(lambda: not engine.services.list(filters=OF_THE_STACK), PATIENCE_S)
        eventually(lambda: not engine.api.containers(all=True, filters=OF_THE_STACK), PATIENCE_S)  # they go meanwhile
        eventually(lambda: not engine.networks.list(filters=OF_THE_STACK), PATIENCE_S)
    finally:
        swarm("stack", "rm", NAME, check=False)
        eventually(lambda: left(engine), PATIENCE_S)
        swarm("network", "rm", "docker_gwbridge", check=False)  # the engine's own, of no use without a swarm


def left(engine: docker.DockerClient) -> bool:
    """Whether the engine has left its swarm. It gives up while a task still ends, and is then asked again."""
    swarm("swarm", "leave", "--force", check=False)
    return bool(engine.info()["Swarm"]["LocalNodeState"] == "inactive")


def replicas() -> dict[str, str]:
    lines = swarm("service", "ls", "--filter", f"label={OF_THE_STACK['label']}", "--format", "{{json .}}").splitlines()
    found = [json.loads(line) for line in lines]
    return {one["Name"].removeprefix(f"{NAME}_"): one["Replicas"].split()[0] for one in found}


def answers(stack: Deployed) -> bool:
    try:
        return generate(stack)
    except OSError:
        return False


def generate(stack: Deployed) -> bool:
    body = json.dumps({"text_input": "The", "max_tokens": 1}).encode()
    url = f"http://{stack.http}/v2/models/simple-gpt2/generate"
    with urllib.request.urlopen(urllib.request.Request(url, body, stack.headers), timeout=60) as response:
        return "text_output" in json.load(response)


def stream(stack: Deployed) -> gpt2_streams.Answer:
    parameters = {"max_tokens": 4, "ignore_eos": True}
    (answer,) = gpt2_streams.ask(stack.grpc, "iterative-gpt2", [b"The"], parameters, stack.headers)
    return answer


def tasks() -> set[str]:
    return set(swarm("service", "ps", f"{NAME}_triton", "-q", "--filter", "desired-state=running").split())


def test_an_update_under_load_fails_no_request_and_removal_leaves_nothing(deployed: Deployed) -> None:
    assert len(stream(deployed).finals) == 4, "a client of the lab"
    with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
        generate(replace(deployed, headers={}))
    with pytest.raises(InferenceServerException):
        stream(replace(deployed, headers={}))

    before, end, done, failed = tasks(), threading.Event(), [0], []

    def load(ask: Any) -> None:
        while not end.is_set():
            try:
                ask()
                done[0] += 1
            except Exception as error:
                failed.append(repr(error))

    threads = [threading.Thread(target=load, args=(functools.partial(each, deployed),)) for each in (generate, stream)]
    for thread in threads:
        thread.start()
    try:
        swarm("service", "update", "--detach", "--force", f"{NAME}_triton")
        state = ["service", "inspect", f"{NAME}_triton", "--format", "{{with .UpdateStatus}}{{.State}}{{end}}"]
        eventually(lambda: swarm(*state) not in ("", "updating"), PATIENCE_S)
        assert swarm(*state) == "completed"
        eventually(lambda: replicas()["triton"] == "2/2", PATIENCE_S)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert done[0] > 0
    assert not tasks() & before, "both replicas are new"
