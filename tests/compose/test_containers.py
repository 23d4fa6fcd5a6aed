"""A stack in real containers: locked down, on loopback, without secrets, and described by nothing but its labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machinery import container, labctl, runtime
from waiting import DEADLINE_S

from labctl.listener import Silent
from labctl.runtimes import docker_engine
from labctl.triton.server_api import call_triton

QUESTION = {"text_input": "hello"}
TOKEN = "hf_secret_of_the_person"


def test_a_stack_answers_on_loopback(in_containers: Callable[..., dict[str, Any]], shared: Path) -> None:
    shown = in_containers("quick")
    assert (shown["state"], shown["runtime"]) == ("ready", "compose")
    code, body = call_triton(shown["endpoints"]["http"], "POST", "/v2/models/echo/generate", QUESTION, DEADLINE_S)
    assert (code, json.loads(body)["text_output"]) == (200, "hello")
    bound = container(shared, "quick").attrs["HostConfig"]["PortBindings"].values()
    assert {binding["HostIp"] for ports in bound for binding in ports} == {"127.0.0.1"}


def test_the_server_is_locked_down(in_containers: Callable[..., dict[str, Any]], shared: Path) -> None:
    in_containers("quick")
    attributes = container(shared, "quick").attrs
    host = attributes["HostConfig"]
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and host["Init"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["ShmSize"] == 256 * 2**20
    assert not attributes["Config"]["User"].startswith("0")
    assert {mount["Destination"] for mount in attributes["Mounts"] if mount["RW"]} == {
        str(shared / ".labs" / "quick" / "run")
    }


def test_logs_come_from_the_container(in_containers: Callable[..., dict[str, Any]], shared: Path) -> None:
    in_containers("quick")
    assert "successfully loaded 'moody'" in labctl("logs", "quick", root=shared).stdout


def test_up_with_other_settings_is_refused(in_containers: Callable[..., dict[str, Any]], shared: Path) -> None:
    in_containers("quick")
    again = labctl("up", "quick", "--runtime", "compose", root=shared)
    assert "already up with these settings" in again.stderr
    other = labctl("up", "quick", "--runtime", "compose", "--set", "seconds=1", root=shared, check=False)
    assert other.returncode == 1
    assert "seconds: it runs with 0.0, you asked for 1.0" in other.stderr


def test_the_token_reaches_the_builder_and_nothing_that_docker_shows(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    shown: list[str] = []

    class Watching(Silent):
        def progress(self, text: str) -> None:
            if text == "begun":
                shown.extend(json.dumps(c.attrs) for c in docker_engine.containers(str(own), service="engine-builder"))

    script = "import os, sys; print('begun', file=sys.stderr, flush=True); print(len(os.environ['HF_TOKEN']))"
    builder = runtime(own)
    builder.prepare(Silent(), "cpu")
    assert builder.tool(Watching(), ["-c", script]).strip() == str(len(TOKEN))
    assert len(shown) == 1
    assert TOKEN not in shown[0]
    assert not list((own / ".labs").rglob("*token*"))
