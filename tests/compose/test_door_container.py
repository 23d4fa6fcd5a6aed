"""The exposed door as a container before two replicas: who gets in, what it may do, and what is left."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from certificates import authority, pair
from killing import kill_server
from machinery import copy_of_the_checkout, labctl, leftovers, runtime, status, taken_down
from waiting import eventually

from labctl.runtimes import docker_engine
from labkit.evidence import metrics
from labkit.tls import CertificatePair

STACK, MODEL, PROMPT = "iterative", "simple-gpt2", "I have lived in"
ASKED: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}
TLS_WORDS = ("--openai", "--expose", "--runtime", "compose", "--ports", "auto")


def tls_options(made: CertificatePair) -> tuple[str, ...]:
    return "--tls-cert", str(made.certificate), "--tls-key", str(made.key)


@dataclass(frozen=True)
class Exposed:
    root: Path
    address: str
    token: str
    said: str
    counters: dict[int, str]  # where each replica's are: `labctl status` itself asks the models

    @property
    def container(self) -> Any:
        (found,) = docker_engine.containers(str(self.root), STACK, "openai")
        return found

    @property
    def executed(self) -> dict[int, float]:
        """How often the model was executed, by replica."""
        counts: dict[int, float] = {}
        for number, endpoint in self.counters.items():
            with contextlib.suppress(OSError):
                counts[number] = metrics.scrape(endpoint).models[MODEL].exec_count
        return counts


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory, snapshot: Path) -> Iterator[Exposed]:
    """Up with two replicas, exposed; when it ends, nothing of it may be left."""
    root = copy_of_the_checkout(tmp_path_factory.mktemp("exposed") / "own", snapshot)
    words = ("--openai", "--expose", "--replicas", "2", "--runtime", "compose", "--ports", "auto", "-v", "--json")
    try:
        done = labctl("up", STACK, *words, root=root, timeout=600)
        token = labctl("status", STACK, "--token", root=root).stdout.strip()
        shown = json.loads(done.stdout)
        counters = {one["number"]: one["endpoints"]["metrics"] for one in shown["replicas"]}
        yield Exposed(root, shown["openai"], token, done.stdout + done.stderr, counters)
    finally:
        taken_down(root)
        assert runtime(root).stacks() == set()


def test_only_those_who_have_the_token_are_answered_and_nothing_else_reaches_the_servers(exposed: Exposed) -> None:
    before = exposed.executed
    for address in (exposed.address, exposed.address.replace("127.0.0.1", "127.0.0.2")):
        stranger = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        with stranger, pytest.raises(openai.AuthenticationError):
            stranger.completions.create(**ASKED)
    assert exposed.executed == before
    with openai.OpenAI(base_url=exposed.address.replace("127.0.0.1", "127.0.0.2"), api_key=exposed.token) as client:
        answer = client.completions.create(**ASKED)
    assert answer.choices[0].text and answer.usage and answer.usage.prompt_tokens > 0, "it has the tokenizer"
    assert sum(exposed.executed.values()) > sum(before.values())


def test_the_token_is_in_one_file_and_no_engine_or_log_shows_it(exposed: Exposed) -> None:
    file = exposed.root / ".labs" / STACK / "token"
    assert (stat.S_IMODE(file.stat().st_mode), file.read_text()) == (0o600, exposed.token)
    for container in docker_engine.containers(str(exposed.root), STACK):
        assert exposed.token not in json.dumps(container.attrs)
        assert exposed.token not in container.logs().decode(errors="replace")
    assert exposed.token not in exposed.said
    assert exposed.token not in json.dumps(status(exposed.root, STACK))
    others = [path for path in exposed.root.rglob("*") if path.is_file() and path != file]
    assert [path for path in others if exposed.token.encode() in path.read_bytes()] == []


def test_the_container_may_do_nothing_but_answer(exposed: Exposed) -> None:
    container = exposed.container.attrs
    host = container["HostConfig"]
    assert host["ReadonlyRootfs"] is True and host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Memory"] and host["PidsLimit"]
    assert container["Config"]["User"].partition(":")[0] not in ("", "root", "0")
    assert not [mount for mount in container["Mounts"] if mount["RW"] and mount["Type"] != "tmpfs"]


def test_a_replica_that_is_killed_does_not_end_the_door(exposed: Exposed) -> None:
    with openai.OpenAI(base_url=exposed.address, api_key=exposed.token, max_retries=0) as client:
        text = client.completions.create(**ASKED).choices[0].text

        def answers() -> bool:
            with contextlib.suppress(openai.InternalServerError):  # what was on its way to the dead one
                return client.completions.create(**ASKED).choices[0].text == text
            return False

        kill_server(exposed.root, STACK, "compose", 1)
        eventually(lambda: all(answers() for _ in range(8)) and exposed.container.status == "running")
        assert status(exposed.root, STACK)["openai"] == exposed.address


def test_down_takes_the_door_and_its_token(exposed: Exposed) -> None:
    """The last of this module: the stack is gone then."""
    labctl("down", STACK, root=exposed.root)
    assert leftovers(exposed.root, STACK) == []
    assert not (exposed.root / ".labs" / STACK / "token").exists()
    with pytest.raises(requests.ConnectionError):
        requests.get(exposed.address, timeout=10)


def test_a_container_with_tls_reads_certificate_and_key_as_secrets_of_which_no_copy_is_made(
    tmp_path_factory: pytest.TempPathFactory, snapshot: Path, tmp_path: Path
) -> None:
    authority(tmp_path)
    made = pair(tmp_path)
    if os.getuid() == 0:  # whose containers run as nobody
        os.chown(made.key, -1, 65534)
        made.key.chmod(0o640)
    root = copy_of_the_checkout(tmp_path_factory.mktemp("tls") / "own", snapshot)
    try:
        labctl("up", STACK, *TLS_WORDS, *tls_options(made), root=root, timeout=600)
        address = status(root, STACK)["openai"]
        assert address.startswith("https://")
        token = labctl("status", STACK, "--token", root=root).stdout.strip()
        trusting = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=str(tmp_path / "ca.pem")))
        with openai.OpenAI(base_url=address, api_key=token, http_client=trusting, max_retries=0) as client:
            assert client.completions.create(**ASKED).choices[0].text
        (found,) = docker_engine.containers(str(root), STACK, "openai")
        mounts = {one["Destination"]: (one["Source"], one["RW"]) for one in found.attrs["Mounts"]}
        assert mounts["/run/secrets/openai_key"] == (str(made.key), False)
        assert mounts["/run/secrets/openai_cert"] == (str(made.certificate), False)
        secret = made.key.read_bytes()
        assert [path for path in root.rglob("*") if path.is_file() and secret in path.read_bytes()] == []
    finally:
        taken_down(root)
    assert runtime(root).stacks() == set()
