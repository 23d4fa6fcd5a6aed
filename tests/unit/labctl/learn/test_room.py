"""A class's room: who gets in, what stays when it grows, and what nobody else can read."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT
from click.testing import CliRunner
from exercise_cases import EXERCISES, begin_in
from lab_errors import is_lab_error, lab_error

from labctl.cli import options as opt
from labctl.cli.main import cli
from labctl.learn import seat
from labctl.learn.room import TEACHER, Room
from labctl.pages import gate
from labctl.stack import shipped
from labctl.workspace import Workspace


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "hub")


def test_everybody_gets_in_by_their_own_password_and_by_no_other(room: Room) -> None:
    told = room.admit(["ada", "bo"])
    assert set(told) == {"ada", "bo", TEACHER}
    for name in (*told, "cy"):
        let_in = {whose for whose, password in told.items() if room.knows(name, password)}
        assert let_in == ({name} if name in told else set())
    assert not room.knows("ada", "") and not room.knows("", "")


def test_a_room_that_grows_keeps_passwords_and_work(room: Room) -> None:
    told = room.admit(["ada"])
    (room.home("ada") / "mine").write_text("work")
    grown = room.admit(["ada", "bo"])
    assert set(grown) == {"bo"} and room.names() == ["ada", "bo"]
    assert room.knows("ada", told["ada"]) and room.knows(TEACHER, told[TEACHER])
    assert (room.home("ada") / "mine").read_text() == "work"


def test_a_new_password_ends_the_lost_one_and_nobody_elses(room: Room) -> None:
    told = room.admit(["ada", "bo"])
    new = room.renew("ada")
    assert room.knows("ada", new) and not room.knows("ada", told["ada"]) and room.knows("bo", told["bo"])


def test_who_begins_anew_finds_an_empty_folder_and_the_old_work_is_kept(room: Room) -> None:
    told = room.admit(["ada"])
    (room.home("ada") / "mine").write_text("work")
    kept = room.clear("ada")
    assert kept is not None and (kept / "mine").read_text() == "work"
    assert not [*room.home("ada").iterdir()] and room.names() == ["ada"] and room.knows("ada", told["ada"])


def test_no_password_is_in_a_file_and_no_file_is_open_to_others(room: Room) -> None:
    told = room.admit(["ada"])
    room.secret("cookie_secret")
    room.lay_token("ada", "token-of-ada")
    files = [path for path in room.path.rglob("*") if path.is_file()]
    assert not any(password in path.read_text() for path in files for password in told.values())
    secrets = [path for path in files if not path.name.endswith(".lock")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    folders = [room.path, *(path for path in room.path.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


@pytest.mark.parametrize(
    "name", ["", "Ada", "ada lovelace", "../ada", "ada/..", "-ada", "a.b", "x" * 32, "1a", "ada\n"]
)
def test_a_name_that_would_not_be_a_plain_folder_is_refused(room: Room, name: str) -> None:
    with lab_error("learner-name-bad", repr(name)):
        room.admit(["bo", name])
    assert not room.names()


def test_a_damaged_file_of_passwords_is_named_and_kept(room: Room) -> None:
    room.admit(["ada"])
    path = room.path / "passwords.json"
    path.write_text("{")
    with lab_error("room-damaged", path):
        room.admit(["bo"])
    assert path.read_text() == "{"


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
def test_add_password_and_reset_work_while_jupyterhub_is_down() -> None:
    shown = said("add", "ada")
    passwords = [said("password", "ada").split()[-1], shown.split()[-3]]
    room = Room(Path.cwd() / ".labs" / "hub")
    assert [room.knows("ada", password) for password in passwords] == [True, False]
    assert "in the room already: ada" in said("add", "ada")
    assert "ada begins anew" in said("reset", "ada")
    assert [line.split()[:2] for line in said("status").splitlines() if line.startswith("ada")] == [["ada", "-"]]


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("command", ["password", "reset"])
def test_somebody_who_is_not_in_the_room_is_an_error_with_the_names_of_those_who_are(command: str) -> None:
    said("add", "ada")
    result = CliRunner().invoke(cli, ["hub", command, "bo"])
    is_lab_error(result.exception, "learner-unknown", "'bo'", "ada")


@pytest.mark.usefixtures("checkout")
def test_trust_each_other_listens_on_loopback_alone() -> None:
    result = CliRunner().invoke(cli, ["hub", "up", "--learners", "1", "--trust-each-other", "--expose"])
    assert result.exit_code == 2 and "loopback" in str(result.output or result.exception)


@pytest.mark.usefixtures("checkout")
def test_a_machine_without_jupyterhub_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["hub", "up", "--learners", "1", "--trust-each-other"])
    is_lab_error(result.exception, "hub-not-installed", "make setup-hub")


def test_behind_jupyterhub_a_page_has_any_name_and_still_takes_no_calls_from_other_pages() -> None:
    own = {"host": "room.example.org"}
    assert gate.objection(own, exposed=False) and not gate.objection(own, False, gate.ANY)
    assert not gate.objection({**own, "origin": "https://room.example.org"}, False, gate.ANY)
    assert gate.objection({**own, "origin": "https://elsewhere.example.org"}, False, gate.ANY)


@pytest.mark.parametrize(
    ("name", "value"), [(opt.JUPYTER[0], "https://r.example.org/user/ada/"), (opt.JUPYTER[1], "/user/ada/")]
)
def test_in_a_class_an_address_is_the_one_that_jupyterlab_shows(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert opt.at_jupyter("lab") == ""
    monkeypatch.setenv(name, value)
    assert opt.at_jupyter("lab/workspaces/02a") == f"{value}lab/workspaces/02a"


def test_the_layout_of_an_exercise_opens_files_that_are_there() -> None:
    for each in EXERCISES:
        opened = [entry["data"].get("path", "") for entry in seat.side_by_side(each).values() if "data" in entry]
        lesson, *own = [path for path in (opened[0], *opened[1:]) if path]
        assert (ROOT / lesson).is_file(), lesson
        started = {f"exercises/{each.id}/{name}" for name in ("task.md", *each.manifest.files)}
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
