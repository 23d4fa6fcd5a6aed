"""The ways in which files are written: whole or not at all, one maker per key."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from lab_errors import lab_error

from labctl.runtimes.lock import stack_lock
from labctl.workspace import Workspace, key_lock
from labkit.disk import atomic_write, need_space, replace_dir


def test_templates_are_the_labs_own_or_in_the_common_folder(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, tmp_path)
    assert workspace.templates("09-demo", "./models") == tmp_path / "labs" / "09-demo" / "models"
    assert workspace.templates("09-demo", "llm") == tmp_path / "model_repos" / "llm"


def test_a_checkout_is_found_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "model_repos").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert Workspace.find(tmp_path / "a" / "b").root == tmp_path
    monkeypatch.setenv("LABS_ROOT", str(tmp_path))
    assert Workspace.find(Path("/")).root == tmp_path


def test_outside_a_checkout_the_remedy_is_named(tmp_path: Path) -> None:
    with lab_error("checkout-missing"):
        Workspace.find(tmp_path)


def test_a_failed_folder_leaves_the_old_one_and_no_trace(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with replace_dir(target) as fresh:
        (fresh / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), replace_dir(target) as fresh:
        (fresh / "a").write_text("new")
        raise KeyboardInterrupt
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_everybody_may_read_a_folder_that_was_made(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch(0o600)
    with replace_dir(tmp_path / "out") as fresh:
        (fresh / "sub").mkdir(0o700)
        (fresh / "sub" / "mine").touch(0o600)
        (fresh / "run").touch(0o700)
        (fresh / "link").symlink_to(elsewhere)
    modes = {path.name: path.lstat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*") if not path.is_symlink()}
    assert modes == {"sub": 0o755, "mine": 0o644, "run": 0o744}
    assert elsewhere.stat().st_mode & 0o777 == 0o600


def test_a_failed_file_leaves_the_old_one_and_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic_write(tmp_path / "f", "old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with lab_error("write-failed"):
        atomic_write(tmp_path / "f", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f", "old")]


def test_a_key_has_one_maker_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []
    held, go = threading.Event(), threading.Event()

    def first() -> None:
        with key_lock(tmp_path / "key"):
            held.set()
            go.wait(60)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert held.wait(60)
    with lab_error("artifact-busy"), key_lock(tmp_path / "key", timeout=0):
        pass
    go.set()
    with key_lock(tmp_path / "key"):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_what_cannot_fit_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    with lab_error("disk-too-full", "1,000,000,000,000 MB"):
        need_space(tmp_path / "not" / "there" / "yet", 10**18)
    need_space(tmp_path, 1)


def test_what_a_stack_writes_is_its_owners_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "checkout", tmp_path / "cache")
    workspace.folder("s").path.mkdir(parents=True)
    with stack_lock(workspace, "s", "up"):
        assert workspace.folder("s").path.stat().st_mode & 0o077 == 0
