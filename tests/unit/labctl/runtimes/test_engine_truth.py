"""What is said of a Docker engine, and of stacks on it, is true: also where it is silent, stopped, old or another's."""

from __future__ import annotations

import io
import json
import os
import platform
import socket
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compose_view
import pytest
from checkout import ROOT
from click.testing import CliRunner
from fake_docker import FakeDocker, serving
from lab_errors import lab_error

from labctl.cli.main import cli
from labctl.cli.stacks import _describe
from labctl.doctor import checklist
from labctl.learn.classroom import IN_ITS_TERMINAL, Classroom, socket_of_engine
from labctl.options import Options
from labctl.runtimes import compose_project, docker_engine, images
from labctl.runtimes.compose_project import Projects
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Endpoints, Record
from labctl.stack import up as bringing_up
from labctl.stack.down import down, down_all
from labctl.stack.session import Session, Unknown
from labctl.stack.stack import RunningStack
from labctl.stack.status import death_of_stack, status
from labctl.workspace import Workspace
from labkit.errors import LabError

STACK = "iterative"
NOBODY = 65534
RECORD = Record(STACK, "02-iterative-scheduling", "compose", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3"))


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine's answer, and no context, of an earlier test."""
    for known in (docker_engine._client, docker_engine._of_context, docker_engine.user_inside):
        known.cache_clear()
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default socket, as an engine that was killed leaves it."""
    path = tmp_path / "docker.sock"
    with serving(FakeDocker(), path):
        pass
    monkeypatch.setattr(docker_engine, "DEFAULT_SOCKET", f"unix://{path}")
    return path


@pytest.fixture(params=["nobody listens", "it hangs", "no socket", "ended"])
def silent(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine that does not answer, in each of the ways in which one does not."""
    path = tmp_path / "engine.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    if request.param == "it hangs":
        monkeypatch.setattr(docker_engine, "PROBE_S", 0.3)
    with socket.socket(socket.AF_UNIX) as listener:
        if request.param in ("it hangs", "nobody listens"):
            listener.bind(str(path))
        if request.param == "it hangs":
            listener.listen()
        if request.param == "ended":
            with serving(FakeDocker(), path):
                docker_engine.engine()  # a command that runs for long has asked it before
        yield


@pytest.fixture
def brought_up(session: Session) -> Session:
    """A session that remembers a stack on compose."""
    session.workspace.folder(STACK).path.mkdir(parents=True)
    session.remember(RECORD)
    return session


# -- a silent engine -----------------------------------------------------------------------------------------------


def test_down_of_a_stack_whose_engine_is_silent_fails_and_keeps_its_state(silent: None, brought_up: Session) -> None:
    with pytest.raises(Unknown) as caught:
        down(brought_up, STACK)
    assert str(brought_up.workspace.folder(STACK).state_file) in caught.value.remedy
    assert docker_engine.LOCAL not in caught.value.remedy
    assert brought_up.remembered(STACK) == RECORD


def test_down_all_takes_down_what_it_can_and_fails_of_the_rest(silent: None, brought_up: Session) -> None:
    here = replace(RECORD, stack="codegen", runtime="local")
    brought_up.workspace.folder(here.stack).path.mkdir(parents=True)
    brought_up.remember(here)
    with pytest.raises(Unknown) as caught:
        down_all(brought_up)
    assert caught.value.details == ("codegen is down",)
    assert brought_up.remembered("codegen") is None
    assert brought_up.remembered(STACK) == RECORD


def test_the_status_of_a_stack_whose_engine_is_silent_is_unknown_and_says_why(
    silent: None, brought_up: Session
) -> None:
    shown = status(brought_up, STACK)
    assert (shown["state"], shown["runtime"]) == ("unknown", "compose")
    ended = shown["ended"] or ""
    assert "no Docker engine answers" in ended or "the Docker engine failed" in ended
    assert ended[1:] in _describe(shown)


def test_no_second_server_starts_while_nobody_knows_of_the_first(
    silent: None, brought_up: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(LocalRuntime, "start", lambda *given: started.append("local"))
    lab, _ = brought_up.catalog.stack(STACK)
    for runtime in ("compose", "local"):
        with pytest.raises(Unknown):
            bringing_up.up(brought_up, lab, STACK, Options(runtime=runtime))
    assert started == []


def test_whoever_asks_a_stack_whose_engine_is_silent_is_not_told_that_it_died(
    silent: None, brought_up: Session
) -> None:
    with pytest.raises(Unknown):
        death_of_stack(brought_up, STACK)
    assert brought_up.may_run(STACK)


@pytest.fixture
def rendered(session: Session) -> Session:
    """A session whose stack was rendered for ``docker compose`` by hand."""
    folder = session.workspace.folder(STACK)
    folder.path.mkdir(parents=True)
    folder.compose_file.write_text(json.dumps({compose_project.RECORD: RECORD.to_json()}))
    folder.env_file.touch()
    folder.make_secret()
    return session


@pytest.mark.parametrize("take_down", [lambda session: down(session, STACK), down_all])
def test_down_of_a_rendered_stack_whose_engine_is_silent_fails_and_keeps_its_files(
    silent: None, rendered: Session, take_down: Callable[[Session], object]
) -> None:
    folder = rendered.workspace.folder(STACK)
    with pytest.raises(Unknown) as caught:
        take_down(rendered)
    assert str(folder.env_file) in caught.value.remedy
    assert folder.env_file.exists() and folder.secret.exists()


def test_a_rendered_stack_whose_engine_is_silent_is_unknown_and_not_absent(silent: None, rendered: Session) -> None:
    assert status(rendered, STACK)["state"] == "unknown"
    assert STACK in rendered.look()[0] and rendered.may_run(STACK)


def test_the_list_of_stacks_says_of_a_silent_engine_that_it_is(silent: None, rendered: Session) -> None:
    assert rendered.look()[1]


def test_a_silent_engine_says_nothing_of_stacks_that_were_never_brought_up_on_it(
    silent: None, session: Session
) -> None:
    assert RunningStack.find(session, STACK) is None
    assert status(session, STACK)["state"] == "absent"
    assert down(session, STACK) is False
    session.workspace.folder("codegen").path.mkdir(parents=True)
    session.remember(replace(RECORD, stack="codegen", runtime="local"))
    assert down_all(session) == ["codegen"]


def test_the_engine_is_not_asked_about_a_stack_whose_record_is_local(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> None:
        pytest.fail("the engine was asked")

    monkeypatch.setattr(docker_engine, "engine", never)
    assert RunningStack.find(session, STACK) is None, "no file says anything of it"
    session.workspace.folder(STACK).path.mkdir(parents=True)
    session.remember(replace(RECORD, runtime="local"))
    assert RunningStack.find(session, STACK) is None
    assert status(session, STACK)["state"] == "failed"
    assert down(session, STACK)


def test_inside_a_container_without_an_engine_a_live_stack_is_unknown_and_the_remedy_is_outside(
    brought_up: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABS_INSIDE", "client")
    monkeypatch.setattr(docker_engine, "DEFAULT_SOCKET", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = status(brought_up, STACK)
    ended = shown["ended"] or ""
    assert shown["state"] == "unknown" and "outside of this container" in ended and "rm " not in ended


# -- containers that were removed ------------------------------------------------------------------------------------


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine that answers and has no container."""
    with serving(FakeDocker(), tmp_path / "engine.sock") as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        yield


def test_containers_that_somebody_else_removed_are_removed_and_did_not_die(empty: None, brought_up: Session) -> None:
    shown = status(brought_up, STACK)
    assert shown["state"] == "removed"
    said = _describe(shown)
    assert "died" not in said and "labctl logs" not in said and f"labctl down {STACK}" in said
    dead = death_of_stack(brought_up, STACK)
    assert dead and "removed" in dead.why + dead.what and "died" not in dead.what
    assert down(brought_up, STACK) is True
    assert brought_up.remembered(STACK) is None


# -- remedies ----------------------------------------------------------------------------------------------------------


def test_whoever_may_not_open_the_socket_is_sent_to_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    import docker  # noqa: F401  # while everything can be read

    with tempfile.TemporaryDirectory() as folder:  # in no folder of pytest's, which others may not look into
        path = Path(folder, "docker.sock")
        Path(folder).chmod(0o755)
        monkeypatch.setenv("HOME", "/nonexistent")
        monkeypatch.setattr(docker_engine, "DEFAULT_SOCKET", f"unix://{path}")
        with serving(FakeDocker(), path):
            path.chmod(0)
            try:
                os.seteuid(os.getuid() or NOBODY)  # nothing is closed to root
                with lab_error("docker-denied", "Permission denied", docker_engine.JOIN):
                    docker_engine.engine()
            finally:
                os.seteuid(os.getuid())


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((500, '{"message": "the store is full"}'), "the store is full"),
        ((403, '{"message": "denied by a plugin"}'), "denied by a plugin"),
        ((400, '{"message": "client is too new"}'), "client is too new"),
        ((200, '{"ApiVersion": "1.12"}'), "no longer supported"),
        ((200, "hello"), ""),
        ((200, "{}"), ""),
    ],
)
def test_an_engine_that_answers_with_an_error_is_not_called_silent_and_its_words_are_told(
    refusal: tuple[int, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with serving(FakeDocker(refusal=refusal), path), lab_error("docker-failed", said):
        docker_engine.engine()


@pytest.mark.parametrize("address", [":A", "tcp://127.0.0.1:port", "nonsense", "ftp://127.0.0.1"])
def test_what_is_no_address_of_an_engine_is_said_to_be_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with lab_error("docker-address"):
        docker_engine.engine()


def test_of_a_containers_folder_only_what_lies_in_it_is_copied_and_no_link(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind in (("./a", tarfile.REGTYPE), ("./b", tarfile.SYMTYPE), ("../c", tarfile.REGTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode, member.uid = kind, "/etc", 0o666, NOBODY
            archive.addfile(member)
    container = SimpleNamespace(get_archive=lambda path: ([made.getvalue()], {}))
    docker_engine.copy_folder(container, "/templates", tmp_path / "target")
    assert [path.name for path in tmp_path.rglob("*") if not path.is_dir()] == ["a"]
    found = (tmp_path / "target" / "a").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (os.getuid(), 0o644)


def test_an_engine_that_fails_later_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with serving(engine := FakeDocker(), path):
        docker_engine.engine()
        engine.refusal = (500, '{"message": "the store is full"}')
        with lab_error("docker-failed") as caught:
            docker_engine.containers("/x")
    assert caught.value.why == "the store is full"


@pytest.mark.parametrize("config", [None, {"auths": {}}, {"currentContext": "default"}])
def test_a_stopped_engine_is_to_be_started_whatever_the_docker_commands_own_file_says(
    config: dict[str, Any] | None, gone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "dockerd"
    tool.touch()
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    if config is not None:
        (tmp_path / ".docker").mkdir()
        (tmp_path / ".docker" / "config.json").write_text(json.dumps(config))
    with lab_error("docker-missing", "refused", docker_engine.START):
        docker_engine.engine()
    tool.unlink()
    with lab_error("docker-missing", docker_engine.INSTALL):
        docker_engine.engine()


def test_a_context_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "nonesuch")
    for ask in (docker_engine.engine, docker_engine.require_docker, docker_engine.engine_address):
        with lab_error("docker-context-unknown", "'nonesuch'", "DOCKER_CONTEXT"):
            ask()


def test_an_engine_over_ssh_is_refused_as_another_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://somebody@elsewhere")
    with lab_error("docker-elsewhere", "ssh://somebody@elsewhere"):
        docker_engine.engine()


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``says(version="24.0.7")``: the engine that answers from now on says that."""
    engine = FakeDocker()

    def say(info: dict[str, Any] | None = None, **words: str) -> None:
        vars(engine).update(words, info=info or {})

    monkeypatch.setattr(docker_engine, "require_plugin", lambda instead: None)
    with serving(engine, tmp_path / "engine.sock") as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        yield say


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({"version": "25.0.0"}, ""),
        ({"version": "20.10.24+dfsg1"}, "docker-too-old"),  # for compose.yaml
        ({"version": "24.0.7"}, "docker-too-old"),
        ({"version": "4.3.1"}, "docker-too-old"),  # Podman's
        ({"info": {"SecurityOptions": ["name=seccomp,profile=builtin", "name=userns"]}}, "docker-maps-users"),
    ],
)
def test_an_engine_that_the_labs_cannot_use_is_refused_by_up_and_by_doctor(
    told: dict[str, Any], code: str, says: Callable[..., None], session: Session
) -> None:
    says(**told)
    row = checklist._check_runtime(session.runtime("compose"), "cpu")
    assert row.state == ("fail" if code else "ok") and told.get("version", "") in row.found
    if code:
        with lab_error(code, told.get("version", ""), docker_engine.LOCAL):
            session.choose("compose", "cpu")


def test_under_a_rootless_engine_the_caller_is_its_root(
    says: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1001)
    monkeypatch.setattr("os.getgid", lambda: 1002)
    for options, user in ((["name=seccomp"], "1001:1002"), (["name=rootless", "name=cgroupns"], "0:0")):
        docker_engine.user_inside.cache_clear()
        says({"SecurityOptions": options})
        projects = Projects(Workspace(tmp_path, tmp_path / "cache"))
        monkeypatch.setattr(images, "client_image", lambda workspace: "labs-client:1")
        projects.write(RECORD, {}, {})
        values = projects.read(STACK)
        assert (values["STACK_USER"], values["STACK_SERVER_USER"]) == (user, user)
        assert ("rootless" in docker_engine.describe_engine()) == (user == "0:0")


# -- a disk, and a build -----------------------------------------------------------------------------------------------


def test_the_disk_that_is_asked_is_the_engines_own(
    says: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"DockerRootDir": str(tmp_path), "Name": platform.node()}
    says(here)
    assert str(tmp_path) in checklist._engine_disk().found
    monkeypatch.setattr(checklist, "IMAGES_DISK", 1e18)
    full = checklist._engine_disk()
    assert full.state == "warn" and "builder prune" in full.remedy
    says({**here, "Name": "a-virtual-machine"})
    assert docker_engine.data_root() == (str(tmp_path), None)


# -- a class -------------------------------------------------------------------------------------------------------


def test_a_class_that_cannot_start_leaves_no_room_and_hears_of_its_own_way_without_docker(
    silent: None, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABS_ROOT", str(session.workspace.root))
    done = CliRunner().invoke(cli, ["hub", "up"])
    assert isinstance(done.exception, LabError)
    assert "--trust-each-other" in done.exception.remedy and docker_engine.LOCAL not in done.exception.remedy
    assert not Classroom(session).room.path.exists()


def test_down_of_a_class_in_a_terminal_names_what_ends_it(
    says: Callable[..., None], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classroom, "answers", lambda classroom: True)
    with lab_error("hub-in-terminal", IN_ITS_TERMINAL):
        Classroom(session).end()


def test_down_of_a_class_in_a_terminal_of_a_machine_without_docker_names_what_ends_it(
    gone: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(Classroom, "answers", lambda classroom: True)
    with lab_error("docker-missing", IN_ITS_TERMINAL):
        Classroom(session).end()


def test_the_hub_gets_the_socket_that_docker_host_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeDocker(), tmp_path / "another.sock") as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        monkeypatch.setenv("HUB_SOCKET", socket_of_engine())
    (mounted,) = (
        mount["source"]
        for mount in compose_view.services([ROOT / "compose.hub.yaml"])["hub"]["volumes"]
        if mount["target"] == "/var/run/docker.sock"
    )
    assert mounted == str(tmp_path / "another.sock")
