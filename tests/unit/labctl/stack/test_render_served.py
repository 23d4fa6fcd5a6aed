"""`labctl render` leaves alone what a running stack serves, and folders that are not its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labctl.options import Options
from labctl.runtimes.lock import Busy, stack_lock
from labctl.stack.build import render_stack
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack

STACK = "iterative"


def render(session: Session, output: Path | None = None, batch: int = 8) -> None:
    lab, name = session.catalog.stack(STACK)
    options = Options(set={"max_batch_size": batch})
    render_stack(session, lab, name, options, session.runtime("local"), output)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def served(session: Session, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The rendered repository of a stack that is down."""
    monkeypatch.setattr(RunningStack, "find", lambda session, stack: None)
    render(session)
    return session.workspace.folder(STACK).repository


def test_the_repository_of_a_stack_that_is_down_is_rendered_again(session: Session, served: Path) -> None:
    before = contents(served)
    render(session, batch=4)
    assert contents(served) != before


@pytest.mark.parametrize("named", [False, True])
def test_the_repository_of_a_stack_that_is_up_is_not_overwritten(
    session: Session, served: Path, monkeypatch: pytest.MonkeyPatch, named: bool, tmp_path: Path
) -> None:
    before = contents(served)
    up: Any = (None, None)
    monkeypatch.setattr(RunningStack, "find", lambda session, stack: up if stack == STACK else None)
    with lab_error("output-served", "iterative"):
        render(session, served if named else None, batch=4)
    assert contents(served) == before
    render(session, tmp_path / "elsewhere", batch=4)
    assert contents(tmp_path / "elsewhere") != before


def test_the_repository_of_a_stack_that_comes_up_just_now_is_not_overwritten(session: Session, served: Path) -> None:
    before = contents(served)
    with stack_lock(session.workspace, STACK, "up"), lab_error("stack-busy", "iterative", kind=Busy):
        render(session, batch=4)
    assert contents(served) == before


def test_a_folder_with_something_else_in_it_is_not_replaced(session: Session, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary").write_text("mine")
    with lab_error("output-not-empty"):
        render(session, tmp_path / "home")
    assert (tmp_path / "home" / "diary").read_text() == "mine"
