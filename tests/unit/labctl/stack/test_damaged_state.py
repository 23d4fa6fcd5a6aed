"""State files that hold anything at all: they are ignored with a note, and what runs is looked up again."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from noting import Noting

from labctl.options import Options
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.lock import holder
from labctl.runtimes.record import Endpoints, Proc, Record
from labctl.stack import down as taking_down
from labctl.stack.down import down, down_all
from labctl.stack.session import Session
from labctl.stack.status import status

STACK = "iterative"
ENDPOINTS = Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
RECORD = Record(STACK, "02", "local", "cpu", {"a": 1}, ["m"], ENDPOINTS, owner=Proc(1, 2.0))
ODD: tuple[Any, ...] = (None, "x", 5, 0.5, True, [], {}, [5], [[]], {"a": 5})
MEANINGFUL: list[tuple[str, Any]] = [("owner", None), ("servers", {}), ("balance", "x"), ("tokenizer_dir", "x")]
MEANINGFUL_OPTIONS: list[tuple[str, Any]] = [
    ("templates", None),
    *((name, "x") for name in ("templates", "gpu", "runtime", "balance")),
    *((name, None) for name in ("timeout", "replicas")),
    *(("timeout", number) for number in (5, 0.5, True)),
    *(("replicas", number) for number in (5, True)),
]


@pytest.fixture
def listener() -> Noting:
    return Noting()


@pytest.fixture
def here(session: Session, listener: Noting, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session without Docker, whose stack's folder is there."""
    own = replace(session, listener=listener)
    monkeypatch.setattr(Session, "runtime", lambda self, name: LocalRuntime(own.workspace))
    own.workspace.folder(STACK).state_file.parent.mkdir(parents=True)
    return own


def state_file(here: Session) -> Path:
    return here.workspace.folder(STACK).state_file


@pytest.mark.parametrize(
    "text", ["null", '"x"', "5", "true", "[]", "{}", "", "{", "\x00", "[" * 100_000], ids=lambda text: ascii(text[:40])
)
def test_fault_17_a_state_file_that_holds_no_record_is_ignored_with_a_note_by_status_and_down(
    here: Session, listener: Noting, text: str
) -> None:
    state_file(here).write_text(text)
    assert status(here, STACK)["state"] == "absent"
    assert f"{state_file(here)} cannot be read and is ignored" in listener.notes[0]
    down_all(here)
    assert not state_file(here).exists()


@pytest.mark.parametrize("name", json.loads(RECORD.to_json()))
def test_a_record_with_a_value_of_another_type_is_no_record(here: Session, listener: Noting, name: str) -> None:
    right = json.loads(RECORD.to_json())[name]
    for odd in (value for value in ODD if type(value) is not type(right)):
        state_file(here).write_text(json.dumps({**json.loads(RECORD.to_json()), name: odd}))
        listener.notes.clear()
        found = here.remembered(STACK)
        assert found is None or (name, odd) in MEANINGFUL, odd
        assert bool(listener.notes) == (found is None)


@pytest.mark.parametrize("name", [item.name for item in fields(Options)])
def test_a_record_whose_options_have_a_value_of_another_type_is_no_record(here: Session, name: str) -> None:
    for odd in ODD:
        data = json.loads(RECORD.to_json())
        options = data["options"]
        if type(options[name]) is type(odd):
            continue
        options[name] = odd
        state_file(here).write_text(json.dumps(data))
        assert here.remembered(STACK) is None or (name, odd) in MEANINGFUL_OPTIONS, odd


def test_the_record_of_another_stack_is_ignored_with_a_note(here: Session, listener: Noting) -> None:
    state_file(here).write_text(replace(RECORD, stack="another").to_json())
    assert here.remembered(STACK) is None
    assert listener.notes


def test_fault_44_a_fifo_in_place_of_a_file_that_status_reads_hangs_nothing(here: Session, listener: Noting) -> None:
    folder = here.workspace.folder(STACK).path
    for name in ("state.json", "lock", "secret", "ended"):
        os.mkfifo(folder / name)
    assert status(here, STACK)["state"] == "absent"
    assert listener.notes
    assert holder(here.workspace, STACK) is None


@pytest.mark.parametrize("text", ["null", '"x"', "[]", '{"who": 1}', '{"pid": [], "started": {}, "action": 5}'])
def test_the_note_of_a_lock_and_of_a_death_may_hold_anything(here: Session, text: str) -> None:
    for name in ("lock", "ended"):
        (here.workspace.folder(STACK).path / name).write_text(text)
    assert holder(here.workspace, STACK) is None
    assert LocalRuntime(here.workspace).state(RECORD).death is None


def test_fault_44_a_stack_whose_state_file_is_null_can_be_taken_down(
    here: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_file(here).write_text("null")
    there = ["process 1"]
    monkeypatch.setattr(LocalRuntime, "leftovers", lambda self, stack: list(there))
    monkeypatch.setattr(taking_down, "take_down", lambda *arguments: there.clear())
    assert down(here, STACK)
    assert not state_file(here).exists()
