"""What `--dry-run` prints is what is then done: the `docker` commands, containers and files of the compose runtime."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.listener import Silent
from labctl.manifest.catalog import load
from labctl.plan import make_plan
from labctl.runtimes import compose, docker_engine, images
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.record import Choices, UpOptions
from labctl.stack import replicas
from labctl.stack.down import take_down
from labctl.stack.session import Session, Todo
from labctl.stack.up import preparations, up
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
STACK = "inflight-batching"
OPTIONS = UpOptions(Choices(set={"engine": "transformers", "model": "random:tiny-llama"}), "compose", "8100,8101,8102")


class Docker:
    """A ``docker`` on PATH that only writes down what it is told, and an engine that believes it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "docker.jsonl"
        tool = folder / "docker"
        tool.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            "env = {key: value for key, value in os.environ.items() if key.startswith('LABS_')}\n"
            f"open({str(self.log)!r}, 'a').write(json.dumps([sys.argv[1:], env]) + '\\n')\n"
            f"said = {str(folder / 'said')!r}\n"
            "if sys.argv[1] == 'start': sys.exit(print(open(said).read()) if os.path.exists(said) else 1)\n"
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(ComposeRuntime, "check", lambda self, profile: None)
        monkeypatch.setattr(images, "digest", lambda image: "sha256:0" if self.exists(image) else "")
        monkeypatch.setattr(docker_engine, "containers", self.containers)
        for name in ("networks", "volumes"):
            monkeypatch.setattr(docker_engine, name, lambda *asked: [])
        monkeypatch.setattr(docker_engine, "remove", lambda name: None)
        monkeypatch.setattr(compose, "hub_token", lambda: "")
        monkeypatch.setattr(replicas, "wait_ready", lambda *asked, **more: None)

    def told(self) -> list[tuple[list[str], dict[str, str]]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(["docker", *argv], env) for argv, env in map(json.loads, lines)]

    def exists(self, image: str) -> bool:
        return any("build" in argv and image in env.values() for argv, env in self.told())

    def containers(self, root: str, stack: str | None = None, service: str | None = None) -> list[Any]:
        last = [argv for argv, _ in self.told() if "--detach" in argv or argv[4:5] == ["down"]][-1:]
        server = SimpleNamespace(name="c", status="exited", labels={}, logs=lambda tail: b"", reload=lambda: None)
        return [server for argv in last if "--detach" in argv]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Docker(folder, monkeypatch)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    root = tmp_path / "checkout"
    root.mkdir()
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name != "results":
            (root / path.name).symlink_to(path)
    workspace = Workspace(root, tmp_path / "cache")
    return Session(workspace, load(workspace), Silent())


def planned(session: Session, options: UpOptions) -> Todo:
    """What a dry run of ``up`` records."""
    dry = session.dry_run()
    up(dry, *dry.catalog.stack(STACK), options)
    assert dry.todo
    return dry.todo


@pytest.mark.parametrize("expose", [False, True])
def test_up_runs_the_commands_and_writes_the_files_that_its_dry_run_lists(
    docker: Docker, session: Session, expose: bool
) -> None:
    lab, name = session.catalog.stack(STACK)
    options = replace(OPTIONS, expose=expose)
    todo = planned(session, options)
    listed = [command for action in todo.actions for command in action.commands]
    files = [file for action in todo.actions for file in action.files]
    assert docker.told() == []
    assert not session.workspace.state.exists()
    handle = up(session, lab, name, options)
    done, builds = docker.told(), 2
    assert [argv for argv, _ in done] == [list(command.argv) for command in listed]
    for command, (_, env) in zip(listed, done, strict=True):
        assert command.env.items() <= env.items()
    made = [argv[argv.index("--name") + 1] if "--name" in argv else f"{argv[3]}-triton-1" for argv, _ in done[builds:]]
    assert [command.container.partition(":")[0] for command in listed if command.container] == made
    folders = tuple(file for file in files if file.endswith("/"))
    made = [str(p) for p in session.workspace.state.rglob("*") if not p.is_dir() and "lock" not in p.name]
    assert [path for path in made if path not in files and not path.startswith(folders)] == []
    assert [file for file in files if file.startswith(str(session.workspace.state)) and not Path(file).exists()] == []
    stop = handle.runtime.stop(name)
    take_down(session, handle.runtime, name)
    assert docker.told()[-1][0] == list(stop.commands[0].argv)


def test_images_that_are_there_are_not_listed_again(docker: Docker, session: Session) -> None:
    lab, name = session.catalog.stack(STACK)
    up(session, lab, name, OPTIONS)
    titles = [action.title for action in planned(session, OPTIONS).actions]
    assert not [title for title in titles if title.startswith("image ")]


class Noting(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("said", "noted"),
    [
        ("0.17.0.post1", []),
        ("0.18.0.dev2", ["has TensorRT-LLM 0.18.0.dev2, and labctl's table is that of 0.17.0.post1"]),
        ("", ["has a TensorRT-LLM of an unknown version, and labctl's table is that of 0.17.0.post1"]),
    ],
)
def test_an_image_whose_tensorrt_llm_is_not_the_tables_is_told(
    docker: Docker, session: Session, tmp_path: Path, said: str, noted: list[str]
) -> None:
    """It is asked once: when its templates are copied out of it. Tags have held another version than they said."""
    lab, name = session.catalog.stack(STACK)
    runtime = ComposeRuntime(session.workspace)
    plan = make_plan(session.workspace, lab, name, Choices("gpu", release="0.17.0"), runtime.server_path)
    (copy,) = [a for a in preparations(plan, runtime, session.workspace) if a.title.startswith("templates of")]
    if said:
        (tmp_path / "bin" / "said").write_text(said)
    listener = Noting()
    copy.do(listener)
    assert [words in note for words, note in zip(noted, listener.notes, strict=True)] == [True] * len(noted)
    assert [argv[1] for argv, _ in docker.told()] == ["create", "start", "cp", "rm"]
    assert plan.fetched and plan.fetched.is_dir()
