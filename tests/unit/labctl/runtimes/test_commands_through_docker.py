"""The `docker` commands of the compose runtime, and the file of their values."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compose_view
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_errors import lab_error
from machinery import of_its_own
from noting import Noting
from programs import needs

from labctl.catalog import load_catalog
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes import compose, docker_engine, images, processes
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_project import read_values, write_values
from labctl.stack import replicas
from labctl.stack.build import prepare_artifacts
from labctl.stack.down import take_down
from labctl.stack.session import Session
from labctl.stack.up import up
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
        )
        tool.chmod(0o755)
        self.built: set[str] = set()
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(ComposeRuntime, "check", lambda self, profile: None)
        monkeypatch.setattr(images, "image_digest", lambda image: "sha256:0" if self.exists(image) else None)
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


class ImageContainer:
    """An engine's containers, and the one that it makes: it says something, and has a folder of templates."""

    def __init__(self, said: str) -> None:
        self.said, self.calls = said, list[str]()

    def create(self, image: str, command: list[str], **options: Any) -> ImageContainer:
        assert options == {"network_mode": "none", "entrypoint": "python3"}
        self.calls.append("create")
        return self

    def start(self) -> None:
        self.calls.append("start")

    def wait(self, timeout: float) -> dict[str, int]:
        return {"StatusCode": 0 if self.said else 1}

    def logs(self, stderr: bool) -> bytes:
        return f"{self.said}\n".encode()

    def get_archive(self, path: str) -> tuple[list[bytes], dict[str, Any]]:
        self.calls.append("copy")
        with io.BytesIO() as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                member = tarfile.TarInfo("./model/config.pbtxt")
                member.size = len(text := b"a template")
                archive.addfile(member, io.BytesIO(text))
            return [file.getvalue()], {}

    def remove(self, **options: Any) -> None:
        self.calls.append("remove")


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
    assert "down" in docker.told()[-1][0]
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
    secret = folder.read_secret()
    assert secret and secret not in written


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
    docker: Docker, session: Session, said: str, noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once: when its templates are copied out of it. Tags have held another version than they said."""
    lab, name = session.catalog.stack(STACK)
    runtime = ComposeRuntime(session.workspace)
    plan = make_plan(session.workspace, lab, name, Options("gpu", {"engine": "tensorrt-llm"}))
    container = ImageContainer(said)
    monkeypatch.setattr(docker_engine, "engine", lambda: SimpleNamespace(containers=container))
    monkeypatch.setattr(images, "build_missing_images", lambda *asked: None)
    listener = Noting()
    prepare_artifacts(replace(session, listener=listener), replace(plan, artifacts=()), runtime)
    notes = [note for note in listener.notes if "made first" not in note]
    assert [words in note for words, note in zip(noted, notes, strict=True)] == [True] * len(noted)
    assert container.calls == ["create", "start", "copy", "remove"]
    assert plan.fetched and (plan.fetched / "model" / "config.pbtxt").read_text() == "a template"


# -- the log of a stack with a guard, which is that of two containers --------------------------------------------------


def test_two_streams_are_followed_to_the_end_of_both() -> None:
    assert sorted(processes.as_they_come([iter(["a", "b"]), iter(["c"])])) == ["a", "b", "c"]


def test_what_one_stream_raises_is_not_lost() -> None:
    def broken() -> Iterator[str]:
        yield "first"
        raise LabError("the engine is gone", code="docker-silent")

    with lab_error("docker-silent"):
        list(processes.as_they_come([broken(), iter([])]))
