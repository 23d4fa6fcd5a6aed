"""The OpenAI API as a container before two replicas: what it may do, what it outlives, and what is left."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from killing import kill_server
from machinery import copy_of_the_checkout, labctl, leftovers, names_left, status, taken_down
from waiting import eventually

from labctl.runtimes import docker_engine

STACK, MODEL, PROMPT = "iterative", "simple-gpt2", "I have lived in"
ASKED: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, snapshot: Path) -> Iterator[tuple[Path, str]]:
    """A checkout whose stack is up with two replicas, and the API's base URL; at the end nothing may be left."""
    root = copy_of_the_checkout(tmp_path_factory.mktemp("served") / "own", snapshot)
    words = ("--openai", "--replicas", "2", "--runtime", "compose", "--ports", "auto", "--json")
    try:
        done = labctl("up", STACK, *words, root=root, timeout=600)
        yield root, json.loads(done.stdout)["openai"]
    finally:
        taken_down(root)
        assert names_left(root) == set()


def container(root: Path) -> Any:
    (found,) = docker_engine.containers(str(root), STACK, "openai")
    return found


def test_it_answers_with_the_tokenizers_counts(served: tuple[Path, str]) -> None:
    with openai.OpenAI(base_url=served[1], api_key="none", max_retries=0) as client:
        answer = client.completions.create(**ASKED)
    assert answer.choices[0].text and answer.usage and answer.usage.prompt_tokens > 0


def test_the_container_may_do_nothing_but_answer(served: tuple[Path, str]) -> None:
    attributes = container(served[0]).attrs
    host = attributes["HostConfig"]
    assert host["ReadonlyRootfs"] is True and host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Memory"] and host["PidsLimit"]
    assert attributes["Config"]["User"].partition(":")[0] not in ("", "root", "0")
    assert not [mount for mount in attributes["Mounts"] if mount["RW"] and mount["Type"] != "tmpfs"]


def test_a_replica_that_is_killed_does_not_end_it(served: tuple[Path, str]) -> None:
    root, address = served
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        text = client.completions.create(**ASKED).choices[0].text

        def answers() -> bool:
            with contextlib.suppress(openai.InternalServerError):  # what was on its way to the dead one
                return client.completions.create(**ASKED).choices[0].text == text
            return False

        kill_server(root, STACK, "compose", 1)
        eventually(lambda: all(answers() for _ in range(8)) and container(root).status == "running")
        assert status(root, STACK)["openai"] == address


def test_down_takes_it(served: tuple[Path, str]) -> None:
    """The last of this module: the stack is gone then."""
    root, address = served
    labctl("down", STACK, root=root)
    assert leftovers(root, STACK) == []
    with pytest.raises(requests.ConnectionError):
        requests.get(address, timeout=10)
