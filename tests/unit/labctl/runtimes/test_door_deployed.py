"""Where the door runs beside a process of this machine: in a container of the stack's project."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import compose_view
import pytest
from checkout import ROOT
from lab_errors import lab_error
from machinery import of_its_own
from programs import needs

from labctl.listener import Silent
from labctl.options import Options
from labctl.runtimes import door, images
from labctl.runtimes.compose_project import read_values
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Endpoints, Record
from labctl.workspace import Workspace

STACK, PORT = "iterative", 9123


def started(tmp_path: Path, **options: Any) -> tuple[dict[str, str], Workspace]:
    """The values of a stack with the door's container beside ``labctl up iterative --runtime compose``."""
    workspace = of_its_own(Path(tempfile.mkdtemp(dir=tmp_path)))
    stack, record = compose_view.written(workspace, STACK, Options(runtime="compose", **options))
    door.door_container(workspace, record, PORT)
    return read_values(stack.folder.env_file.read_text()), workspace


@pytest.mark.parametrize(
    ("options", "endpoint"),
    [
        ({}, "triton:8001"),
        ({"replicas": 2}, "envoy:8001"),
        ({"replicas": 2, "balance": "client"}, "dns:///replicas:8001"),
    ],
    ids=str,
)
def test_the_container_speaks_to_what_stands_before_the_servers(
    tmp_path: Path, options: dict[str, Any], endpoint: str
) -> None:
    values, workspace = started(tmp_path, **options)
    words = shlex.split(values["STACK_OPENAI_ARGS"])
    assert words[words.index("--endpoint") + 1] == endpoint
    assert words[words.index("--tokenizer") + 1] == str(workspace.models / "tiny-gpt2")


@needs("docker compose")
def test_compose_gives_the_container_no_more_than_envoys_and_publishes_as_told(tmp_path: Path) -> None:
    _, workspace = started(tmp_path)
    found: dict[str, Any] = compose_view.of_stack(workspace.folder(STACK).env_file)["openai"]
    assert [(one["host_ip"], one["published"], one["target"]) for one in found["ports"]] == [
        ("127.0.0.1", str(PORT), 9000)
    ]
    assert found["read_only"] and found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert not found["user"].startswith("0:") and found["user"] != "root"
    assert all(volume["read_only"] for volume in found["volumes"])
    assert found["mem_limit"] and found["pids_limit"] and found["healthcheck"]["test"]
    assert found["image"] == images.client_image(Workspace(ROOT, tmp_path))


def test_a_process_that_ends_before_it_answers_is_named_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path, tmp_path / "cache")
    workspace.folder(STACK).path.mkdir(parents=True)
    places = Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    record = Record(STACK, "lab", "local", "cpu", {}, ["m"], places)
    program = Command([sys.executable, "-c", "import sys; sys.exit('no port')"])
    monkeypatch.setattr(door, "command", lambda *arguments, **options: program)
    with lab_error("openai-not-started", "exit status 1") as caught:
        door.start_door_server(workspace, record, 1, Silent())
    assert caught.value.details == ("no port",)
