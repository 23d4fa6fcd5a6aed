"""A class's room: what stays, and what nobody else can read."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT
from click.testing import CliRunner
from exercise_cases import EXERCISES, begin_in
from lab_errors import is_lab_error

from labctl.cli import options as opt
from labctl.cli.main import cli
from labctl.learn import seat
from labctl.learn.room import NAME, TEACHER, Room
from labctl.pages import gate
from labctl.stack import shipped
from labctl.workspace import Workspace


@pytest.fixture
def room(tmp_path: Path) -> Room:
    made = Room(tmp_path / "hub")
    made.prepare()
    return made


def test_passwords_and_work_are_there_the_next_time(room: Room) -> None:
    told = (room.password, room.teacher_password, room.cookie_secret)
    (room.open_home("ada") / "mine").write_text("work")
    again = Room(room.path)
    again.prepare()
    assert (again.password, again.teacher_password, again.cookie_secret) == told
    assert (again.open_home("ada") / "mine").read_text() == "work" and len({*told}) == 3


def test_no_file_is_open_to_others(room: Room) -> None:
    assert room.password and room.teacher_password and room.cookie_secret
    room.open_home("ada")
    room.lay_token("ada", "token-of-ada")
    files = [path for path in room.path.rglob("*") if path.is_file()]
    assert len(files) == 4 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    folders = [room.path, *(path for path in room.path.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_a_learner_is_a_folder_with_a_learners_name(room: Room) -> None:
    for name in ("bo", "ada", TEACHER, "ada.20260101", "Cy", ".cache"):
        (room.path / "work" / name).mkdir()
    assert room.names() == ["ada", "bo"]


@pytest.mark.parametrize(
    "name", ["", "Ada", "ada lovelace", "../ada", "ada/..", "-ada", "a.b", "x" * 32, "1a", "ada\n"]
)
def test_a_name_that_would_not_be_a_plain_folder_is_none(name: str) -> None:
    assert not NAME.match(name)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(begin_in(tmp_path, monkeypatch))
    return tmp_path


def said(*words: str) -> str:
    result = CliRunner().invoke(cli, ["hub", *words])
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.mark.usefixtures("checkout")
def test_status_names_the_learners_while_jupyterhub_is_down() -> None:
    room = Room(Path.cwd() / ".labs" / "hub")
    room.prepare()
    room.open_home("ada")
    result = CliRunner().invoke(cli, ["hub", "status"])
    assert [line.split() for line in result.stdout.splitlines() if line.startswith("ada")] == ["ada - 0 of 15".split()]
    assert "JupyterHub does not answer" in result.stdout


@pytest.mark.usefixtures("checkout")
def test_a_machine_without_jupyterhub_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["hub", "up", "--trust-each-other"])
    is_lab_error(result.exception, "hub-not-installed", "make setup-hub")


def test_behind_jupyterhub_a_page_has_any_name_and_still_takes_no_calls_from_other_pages() -> None:
    own = {"host": "room.example.org"}
    assert gate.objection(own) and not gate.objection(own, gate.ANY)
    assert not gate.objection({**own, "origin": "https://room.example.org"}, gate.ANY)
    assert gate.objection({**own, "origin": "https://elsewhere.example.org"}, gate.ANY)


@pytest.mark.parametrize(
    ("name", "value"), [(opt.JUPYTER[0], "https://r.example.org/user/ada/"), (opt.JUPYTER[1], "/user/ada/")]
)
def test_in_a_class_an_address_is_the_one_that_jupyterlab_shows(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert opt.at_jupyter("lab") is None
    monkeypatch.setenv(name, value)
    assert opt.at_jupyter("lab/workspaces/02a") == f"{value}lab/workspaces/02a"


def test_the_layout_of_an_exercise_opens_files_that_are_there() -> None:
    for each in EXERCISES:
        opened = [entry["data"].get("path", "") for entry in seat.side_by_side(each).values() if "data" in entry]
        lesson, *own = [path for path in (opened[0], *opened[1:]) if path]
        assert (ROOT / lesson).is_file(), lesson
        started = {f"exercises/{each.id}/task.md", *map(each.place, each.manifest.files)}
        assert set(own) == started


def test_a_learners_folder_is_a_copy_that_knows_what_was_edited_and_gives_it_back(tmp_path: Path) -> None:
    source, root = tmp_path / "class", tmp_path / "learner" / "labs"
    root.parent.mkdir()
    for name in (*seat.FILES, *(f"{folder}/m/model.py" for folder in seat.FOLDERS), ".venv/x", "labs/m/model.py~"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("shipped")
    seat.copy_checkout(source, root)
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith(".git/")} == {
        *seat.FILES,
        *(f"{folder}/m/model.py" for folder in seat.FOLDERS),
    }
    model = root / "model_repos" / "m" / "model.py"
    model.write_text("mine")
    assert shipped.edited_files(Workspace(root, tmp_path), [model]) == [model]
    subprocess.run(["git", "checkout", "--quiet", model], cwd=root, check=True)
    assert model.read_text() == "shipped"
