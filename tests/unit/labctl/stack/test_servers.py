"""The servers of a run go on from phase to phase where nothing but their balancer or their models' files differ."""

from __future__ import annotations

import dataclasses

import pytest

from labctl.labs.servers import goes_on
from labctl.options import Options
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Record
from labctl.stack.ports import free_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack, Stack
from labctl.stack.up import record_of

STACK = "scaled"


def steps(session: Session, balance: str, replicas: int = 2, **settings: object) -> tuple[Stack, Record]:
    lab, name = session.catalog.stack(STACK)
    options = Options(set=settings, replicas=replicas, balance=balance)
    stack = Stack(session, lab, name, LocalRuntime(session.workspace), options)
    return stack, record_of(stack, free_endpoints(1)[0])


@pytest.mark.parametrize(
    ("after", "same"),
    [
        ({"balance": "hash"}, True),
        ({"balance": "client"}, True),
        ({"balance": "l7", "replicas": 3}, False),
        ({"balance": "", "replicas": 1}, False),
    ],
)
def test_replicas_stay_where_only_their_balancer_differs(
    session: Session, after: dict[str, object], same: bool
) -> None:
    stack, record = steps(session, "l7")
    before = RunningStack.of(session, stack.lab, stack.runtime, record)
    assert goes_on(before, *steps(session, **after)) is same  # type: ignore[arg-type]


def found(session: Session, monkeypatch: pytest.MonkeyPatch, record: Record) -> Record:
    """What the session makes of a record as its servers know it."""
    monkeypatch.setattr(LocalRuntime, "find", lambda self, stack: record)
    there = session.find(record.stack)
    assert there
    return there.record


def test_a_stack_is_found_with_the_balancer_that_it_has_now(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    began = steps(session, "l4")[1]
    session.remember(dataclasses.replace(began, balance="hash"))
    assert found(session, monkeypatch, began).balance == "hash"


def test_what_is_remembered_of_others_that_had_the_name_is_ignored(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.remember(steps(session, "hash")[1])
    began = steps(session, "l4")[1]
    assert found(session, monkeypatch, began) == began
