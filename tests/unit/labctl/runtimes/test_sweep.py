"""What a killed `run` left is swept by other commands, and never ends them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from lab_errors import lab_error
from noting import Noting

from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Endpoints, Proc, Record
from labctl.stack import down as taking_down
from labctl.stack.down import sweep_dead_stacks
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labkit.errors import LabError

DEAD = Proc(os.getpid(), 1.0)  # this process's number, another one's start
ORPHAN = Record("codegen", "04", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3"), owner=DEAD)


@pytest.fixture
def listener() -> Noting:
    return Noting()


@pytest.fixture
def ended() -> list[str]:
    return []


@pytest.fixture
def here(session: Session, listener: Noting, ended: list[str], monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session that finds the orphan, and takes it down."""
    runtime: Any = None
    monkeypatch.setattr(Session, "running", lambda self: [ORPHAN])
    monkeypatch.setattr(Session, "find", lambda self, stack: RunningStack.of(self, None, runtime, ORPHAN))
    monkeypatch.setattr(taking_down, "take_down", lambda session, runtime, stack, force: ended.append(stack))
    return replace(session, listener=listener)


def test_the_orphan_of_another_stack_that_its_own_command_holds_fails_no_other_command(
    here: Session, listener: Noting, ended: list[str]
) -> None:
    with stack_lock(here.workspace, "codegen", "up"):
        assert sweep_dead_stacks(here, "iterative") == []
    assert ended == []
    assert "another 'labctl up' of codegen is in progress" in listener.notes[0]
    assert "kill " not in listener.notes[0]
    assert sweep_dead_stacks(here, "iterative") == ["codegen"] == ended


def test_the_orphan_of_another_stack_that_cannot_be_taken_down_fails_no_other_command(
    here: Session, listener: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise LabError("something of codegen is still there", code="down-incomplete")

    monkeypatch.setattr(taking_down, "take_down", fail)
    assert sweep_dead_stacks(here, "iterative") == []
    assert "something of codegen is still there" in listener.notes[-1]
    with stack_lock(here.workspace, "codegen", "up"), lab_error("down-incomplete"):
        sweep_dead_stacks(here, "codegen")


@pytest.mark.parametrize("now", [None, replace(ORPHAN, owner=Proc.current()), replace(ORPHAN, owner=None)])
def test_what_another_command_has_brought_up_under_that_name_meanwhile_stays(
    here: Session, ended: list[str], monkeypatch: pytest.MonkeyPatch, now: Record | None
) -> None:
    nowhere: Any = None
    monkeypatch.setattr(Session, "find", lambda self, stack: RunningStack.of(self, None, nowhere, now) if now else None)
    assert sweep_dead_stacks(here) == []
    assert ended == []
