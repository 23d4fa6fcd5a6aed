"""The `docker` commands of the compose runtime, and the file of their values."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compose_view
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_errors import lab_error
from machinery import of_its_own
from noting import Noting
from programs import needs
from waiting import eventually

from labctl.listener import Silent
from labctl.manifest.catalog import load_catalog
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes import compose, docker_engine, images, processes
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_commands import read_values, write_values
from labctl.stack import replicas
from labctl.stack.down import take_down
from labctl.stack.session import Session
from labctl.stack.up import prepare_artifacts, up
from labkit.errors import LabError

STACK = "inflight-batching"
OPTIONS = Options(
    set={"engine": "transformers", "model": "random:tiny-llama"}, runtime="compose", ports="8100,8101,8102"
)


class Docker:
    """A ``docker`` on PATH that only writes down what it is told, and an engine that believes it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "docker.jsonl"
        tool = folder / "docker"
        tool.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"open({str(self.log)!r}, 'a').write(json.dumps([sys.argv[1:], dict(os.environ)]) + '\\n')\n"
            f"said = {str(folder / 'said')!r}\n"
            "if 'start' in sys.argv: sys.exit(print(open(said).read()) if os.path.exists(said) else 1)\n"
        )
        tool.chmod(0o755)
        self.built: set[str] = set()
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(ComposeRuntime, "check", lambda self, profile: None)
        monkeypatch.setattr(images, "image_digest", lambda image: "sha256:0" if self.exists(image) else "")
        monkeypatch.setattr(docker_engine, "containers", self.containers)
        for name in ("networks", "volumes"):
            monkeypatch.setattr(docker_engine, name, lambda *asked: [])
        monkeypatch.setattr(docker_engine, "remove_container", lambda name: None)
        monkeypatch.setattr(compose, "hub_token", lambda: "")
        monkeypatch.setattr(replicas, "wait_ready", lambda *asked, **more: None)

    def told(self) -> list[tuple[list[str], dict[str, str]]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(["docker", *argv], env) for argv, env in map(json.loads, lines)]

    def exists(self, image: str) -> bool:
        return any("build" in argv and image in env.values() for argv, env in self.told())

    def containers(self, root: str, stack: str | None = None, service: str | None = None) -> list[Any]:
        last = [argv for argv, _ in self.told() if "--detach" in argv or "down" in argv][-1:]
        server = SimpleNamespace(name="c", status="exited", labels={}, logs=lambda tail: b"", reload=lambda: None)
        return [server for argv in last if "--detach" in argv]


class Showing(Silent):
    """Keeps the commands that ``--verbose`` shows."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def command(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.commands.append([*argv])


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Docker(folder, monkeypatch)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    workspace = of_its_own(tmp_path)
    return Session(workspace, load_catalog(workspace), Silent())


def test_up_builds_makes_and_starts_in_that_order_and_shows_each_command(docker: Docker, session: Session) -> None:
    lab, name = session.catalog.stack(STACK)
    shown = Showing()
    handle = up(replace(session, listener=shown), lab, name, OPTIONS)
    told = [argv for argv, _ in docker.told()]
    assert shown.commands == told
    order = ["build", "build", "engine-builder", "up"]
    assert [next(word for word in order if word in argv) for argv in told] == order
    assert [argv[2:4] for argv in told if "up" in argv] == [
        ["--env-file", str(session.workspace.folder(name).env_file)]
    ]
    take_down(session, handle.runtime, name)
    assert docker.told()[-1][0][4] == "down"
    assert not session.workspace.folder(name).env_file.exists()


def test_images_that_are_there_are_not_built_again(docker: Docker, session: Session) -> None:
    handle = up(session, *session.catalog.stack(STACK), OPTIONS)
    take_down(session, handle.runtime, STACK)
    before = len(docker.told())
    up(session, *session.catalog.stack(STACK), OPTIONS)
    assert not [argv for argv, _ in docker.told()[before:] if "build" in argv]


def test_what_a_person_exports_reaches_no_compose(
    docker: Docker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compose would take an exported variable before the file's."""
    exported = {"LABS_HTTP_PORT": "1", "STACK_HTTP_PORT": "1", "COMPOSE_PROJECT_NAME": "theirs", "STACK_CACHE": "/"}
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    up(session, *session.catalog.stack(STACK), OPTIONS)
    assert docker.told()
    assert not [item for _, env in docker.told() for item in exported.items() if item in env.items()]


def test_the_stacks_file_is_its_owners_alone_and_has_no_secret(docker: Docker, session: Session) -> None:
    up(session, *session.catalog.stack(STACK), OPTIONS)
    folder = session.workspace.folder(STACK)
    assert folder.env_file.stat().st_mode & 0o777 == 0o600
    written = folder.env_file.read_text() + folder.compose_file.read_text()
    assert folder.read_secret() and folder.read_secret() not in written


@given(st.dictionaries(st.from_regex(r"[A-Z_]+", fullmatch=True), st.text(st.characters(exclude_categories=["Cs"]))))
def test_a_file_of_values_gives_them_back(values: dict[str, str]) -> None:
    assert read_values("# a comment\n" + write_values(values)) == values


@needs("docker compose")
def test_compose_itself_finds_in_a_file_of_values_what_was_written(tmp_path: Path) -> None:
    hard = 'a $HOME ${X} "q" \'s\' back\\slash \\n # hash \\" tab\t end\\\nsecond'
    (tmp_path / "compose.yaml").write_text("services: {one: {image: i, environment: {V: '${V}'}}}")
    env = tmp_path / "compose.env"
    env.write_text(write_values({"COMPOSE_FILE": f"{tmp_path}/compose.yaml", "COMPOSE_PROJECT_NAME": "p", "V": hard}))
    found = compose_view.of_stack(env)["one"]["environment"]["V"]
    assert found.replace("$$", "$") == hard


@pytest.mark.parametrize(
    ("said", "noted"),
    [
        ("0.17.0.post1", []),
        ("0.18.0.dev2", ["has TensorRT-LLM 0.18.0.dev2, and labctl's table is that of 0.17.0.post1"]),
        ("", ["has a TensorRT-LLM of an unknown version, and labctl's table is that of 0.17.0.post1"]),
    ],
)
def test_an_image_whose_tensorrt_llm_is_not_the_tables_is_told(
    docker: Docker, session: Session, tmp_path: Path, said: str, noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once: when its templates are copied out of it. Tags have held another version than they said."""
    lab, name = session.catalog.stack(STACK)
    runtime = ComposeRuntime(session.workspace)
    plan = make_plan(session.workspace, lab, name, Options("gpu", {"engine": "tensorrt-llm"}), runtime.server_path)
    if said:
        (tmp_path / "bin" / "said").write_text(said)
    monkeypatch.setattr(images, "build_missing_images", lambda *asked: None)
    listener = Noting()
    prepare_artifacts(replace(session, listener=listener), replace(plan, artifacts=()), runtime)
    assert [words in note for words, note in zip(noted, listener.notes, strict=True)] == [True] * len(noted)
    assert [argv[1:3] for argv, _ in docker.told()] == [
        ["create", "--entrypoint"],
        ["container", "start"],
        ["container", "cp"],
        ["container", "rm"],
    ]
    assert plan.fetched and plan.fetched.is_dir()


def test_a_killed_labctl_leaves_no_docker_behind(tmp_path: Path) -> None:
    tool, pids = tmp_path / "docker", tmp_path / "pids"
    tool.write_text(f"#!/bin/sh\necho $$ >>{pids}\nexec sleep 600\n")
    tool.chmod(0o755)
    code = (
        "from labctl.listener import Silent; from labctl.runtimes import processes, whales\n"
        "from labctl.runtimes.processes import Command\n"
        "words = whales.docker_argv(lambda docker: docker.compose.up(detach=True), project='p')\n"
        "processes.run_to_end(Command(words), Silent(), 'it failed', code='command-failed')"
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        child = int(eventually(lambda: pids.exists() and pids.read_text().strip()))
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(child))


# -- the log of a stack with a guard, which is that of two containers --------------------------------------------------


def test_two_streams_are_followed_to_the_end_of_both() -> None:
    assert sorted(processes.as_they_come([iter(["a", "b"]), iter(["c"])])) == ["a", "b", "c"]


def test_what_one_stream_raises_is_not_lost() -> None:
    def broken() -> Iterator[str]:
        yield "first"
        raise LabError("the engine is gone", code="docker-silent")

    with lab_error("docker-silent"):
        list(processes.as_they_come([broken(), iter([])]))
