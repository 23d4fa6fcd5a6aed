"""Where the door runs beside a process of this machine: in a container of the stack's project."""

from __future__ import annotations

import os
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
from labctl.runtimes.compose_commands import read_values
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Endpoints, Record
from labctl.workspace import Workspace
from labkit import nofollow
from labkit.tls import CertificatePair

STACK, PORT = "iterative", 9123


def started(tmp_path: Path, tls: CertificatePair | None = None, **options: Any) -> tuple[dict[str, str], Workspace]:
    """The values of a stack with the door's container beside ``labctl up iterative --runtime compose``."""
    workspace = of_its_own(Path(tempfile.mkdtemp(dir=tmp_path)))
    stack, record = compose_view.written(workspace, STACK, Options(runtime="compose", **options))
    door.door_container(workspace, record, PORT, tls)
    return read_values(stack.folder.env_file.read_text()), workspace


def service(tmp_path: Path, **options: Any) -> dict[str, Any]:
    """Compose's own view of the door's container."""
    _, workspace = started(tmp_path, **options)
    found: dict[str, Any] = compose_view.of_stack(workspace.folder(STACK).env_file)["openai"]
    return found


@pytest.mark.parametrize(
    ("options", "endpoint"),
    [
        ({}, "triton:8001"),
        ({"expose": True}, "triton:8001"),
        ({"replicas": 2}, "envoy:8001"),
        ({"replicas": 2, "expose": True}, "envoy:8001"),
        ({"replicas": 2, "balance": "client"}, "dns:///replicas:8001"),
    ],
    ids=str,
)
def test_the_container_speaks_to_what_stands_before_the_servers(
    tmp_path: Path, options: dict[str, Any], endpoint: str
) -> None:
    words = shlex.split(started(tmp_path, **options)[0]["STACK_OPENAI_ARGS"])
    assert words[words.index("--endpoint") + 1] == endpoint
    assert words[words.index("--tokenizer") + 1].startswith("/labs/")
    assert ("--token-file" in words) == ("expose" in options)


def test_only_an_exposed_container_is_published_beyond_loopback_and_its_token_is_a_file_of_its_own(
    tmp_path: Path,
) -> None:
    for exposed in (True, False):
        folder = started(tmp_path, expose=exposed)[1].folder(STACK)
        assert (str(folder.token) in folder.compose_file.read_text()) == exposed
        written = folder.compose_file.read_text() + folder.env_file.read_text()
        assert not exposed or folder.read_token() not in written


def test_a_certificate_and_its_key_are_secrets_of_the_container_and_their_readers_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = CertificatePair(tmp_path / "server.pem", tmp_path / "server.key")
    for path in (files.certificate, files.key):
        path.touch(0o644)
    files.key.chmod(0o600)
    found = files.key.stat()
    another = max(found.st_uid, found.st_gid) + 1  # who runs the tests may be nobody
    monkeypatch.setattr(os, "getuid", lambda: 0)  # root's containers run as nobody
    monkeypatch.setattr(nofollow, "change_owner", lambda path, owner: None)  # which only root can
    monkeypatch.setattr(door, "NOBODY", another)
    with lab_error("openai-file-unreadable", "server.key") as caught:
        started(tmp_path, files, expose=True)
    assert caught.value.remedy == f"chgrp {another} {files.key} && chmod g+r {files.key}"
    monkeypatch.setattr(door, "NOBODY", found.st_gid)
    files.key.chmod(0o640)
    env = started(tmp_path, files, expose=True)[0]
    assert (env["STACK_OPENAI_CERT_FILE"], env["STACK_OPENAI_KEY_FILE"]) == (str(files.certificate), str(files.key))
    words = shlex.split(env["STACK_OPENAI_ARGS"])
    assert words[words.index("--tls-key") + 1] == "/run/secrets/openai_key"
    assert "--tls-key" not in started(tmp_path, expose=True)[0]["STACK_OPENAI_ARGS"]


@needs("docker compose")
def test_compose_gives_the_container_no_more_than_envoys_and_publishes_as_told(tmp_path: Path) -> None:
    for options, address in (({}, "127.0.0.1"), ({"expose": True}, "0.0.0.0")):
        found = service(tmp_path, **options)
        assert [(one["host_ip"], one["published"], one["target"]) for one in found["ports"]] == [
            (address, str(PORT), 9000)
        ]
        assert found["read_only"] and found["cap_drop"] == ["ALL"]
        assert found["security_opt"] == ["no-new-privileges:true"]
        assert not found["user"].startswith("0:") and found["user"] != "root"
        assert all(volume["read_only"] for volume in found["volumes"])
        assert found["mem_limit"] and found["pids_limit"] and found["healthcheck"]["test"]
        assert found["image"] == images.client_image(Workspace(ROOT, tmp_path))


@needs("docker compose")
def test_by_hand_it_is_published_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compose_view.services([ROOT / "compose.yaml"], compose_profiles=["*"], compose_project_directory=ROOT)
    assert [one["host_ip"] for one in found["openai"]["ports"]] == ["127.0.0.1"]
    assert "openai" not in compose_view.services(
        [ROOT / "compose.yaml"], compose_profiles=[], compose_project_directory=ROOT
    )


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
