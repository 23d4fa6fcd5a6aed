"""`labctl new`: a folder appears whole or not at all, and nothing that is there is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from lab_errors import lab_error

from labctl import workspace
from labctl.bundle import folder
from labctl.bundle.folder import make_folder
from labctl.cli.main import cli
from labctl.unfinished import HELD, temporary_folder

MODEL = "labs/01-a/models/m/1/model.py"
FILES = {
    "pyproject.toml": "",
    ".gitignore": "results/\n",
    "model_repos/r/m/1/model.py": "shipped\n",
    MODEL: "shipped\n",
}


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout that labctl is installed from."""
    source = tmp_path / "source"
    for name, text in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    monkeypatch.setattr(workspace, "INSTALLED_FROM", source)
    return source


def found(root: Path) -> dict[str, str]:
    """The files below a folder, without the copies by which `labctl undo` knows them."""
    paths = [path for path in root.rglob("*") if path.is_file() and ".bundle" not in path.parts]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


@pytest.mark.parametrize("place", ["a/b", "empty"])
def test_the_folder_and_those_above_it_are_made_and_an_empty_one_is_filled(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    assert make_folder(tmp_path / place) == len(FILES)
    assert found(tmp_path / place) == FILES


def test_what_a_killed_one_left_beside_it_goes_and_what_another_one_makes_stays(tmp_path: Path) -> None:
    left = tmp_path / f".new{HELD}killed"
    (left / "labs").mkdir(parents=True)
    with temporary_folder(tmp_path / "new") as others:
        make_folder(tmp_path / "new")
        assert others.is_dir() and not left.exists()
    assert found(tmp_path / "new") == FILES


def test_the_files_of_a_wheel_serve_where_there_is_no_checkout_and_without_them_labctl_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "INSTALLED_FROM", tmp_path)
    with lab_error("labs-missing"):
        make_folder(tmp_path / "new")
    monkeypatch.setattr(folder, "IN_WHEEL", source)
    make_folder(tmp_path / "new")
    assert found(tmp_path / "new") == FILES


@pytest.mark.parametrize("there", ["a file in it", "a file", "a link", "the current folder"])
def test_a_place_that_is_taken_is_refused_and_left_as_it_is(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, other = tmp_path / "new", tmp_path / "other"
    other.mkdir()
    match there:
        case "a file in it":
            target.mkdir()
            (target / "mine").write_text("mine")
        case "a file":
            target.write_text("mine")
        case "a link":
            target.symlink_to(other)
        case _:
            target.mkdir()
            monkeypatch.chdir(target)
    before = target.lstat()
    with lab_error("new-folder-unusable"):
        make_folder(target)
    assert (target.lstat().st_ino, target.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(other.iterdir()) == []


def test_what_is_put_there_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: Path, target: Path) -> None:
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "mine").write_text("mine")

    monkeypatch.setattr(folder, "_copy", copy)
    with lab_error("write-failed"):
        make_folder(tmp_path / "new")
    assert found(tmp_path / "new") == {"mine": "mine"}


def test_an_interrupted_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "_copy", copy)
    with pytest.raises(KeyboardInterrupt):
        make_folder(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_links_are_not_copied(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").touch()
    (source / "file").symlink_to(tmp_path / "secret" / "key")
    (source / "folder").symlink_to(tmp_path / "secret")
    make_folder(tmp_path / "new")
    assert found(tmp_path / "new") == FILES


def test_files_become_editable_and_scripts_stay_executable(source: Path, tmp_path: Path) -> None:
    (source / "setup.sh").touch(0o555)
    (source / "pyproject.toml").chmod(0o444)
    make_folder(tmp_path / "new")
    modes = [(tmp_path / "new" / name).stat().st_mode & 0o777 for name in ("setup.sh", "pyproject.toml", "")]
    assert modes == [0o755, 0o644, 0o755]


def test_a_new_folder_serves_as_a_checkout(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "first")
    shutil.rmtree(source)
    monkeypatch.setattr(workspace, "INSTALLED_FROM", tmp_path / "first")
    make_folder(tmp_path / "second")
    assert found(tmp_path / "second") == FILES


def test_the_command_ends_with_the_next_commands(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["new", str(tmp_path / "my labs")]).stdout
    assert [line.split("#")[0].strip() for line in shown.splitlines()[2:]] == [
        f"next:  cd '{tmp_path}/my labs'",
        "make setup",
        "source .venv/bin/activate",
        "labctl run iterative --quick",
    ]
