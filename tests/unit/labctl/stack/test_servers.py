"""The servers of a run go on from phase to phase where nothing but their balancer or their models' files differ."""

from __future__ import annotations

import dataclasses

import pytest

from labctl.labs.servers import goes_on
from labctl.options import Options
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Record
from labctl.stack.ports import free_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, record_of

STACK = "scaled"


def steps(session: Session, balance: str, replicas: int = 2, **settings: object) -> tuple[PlannedStack, Record]:
    lab, name = session.catalog.stack(STACK)
    options = Options(set=settings, replicas=replicas, balance=balance)
    stack = PlannedStack(session, lab, name, LocalRuntime(session.workspace), options)
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
    for runtime in (LocalRuntime, ComposeRuntime):
        known = record if record.runtime == runtime.name else None
        monkeypatch.setattr(runtime, "find", lambda self, stack, known=known: known)
    there = session.find(record.stack)
    assert there
    return there.record


def in_containers(record: Record) -> Record:
    return dataclasses.replace(record, runtime="compose")


def test_a_stack_is_found_with_the_balancer_that_it_has_now(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    began = in_containers(steps(session, "l4")[1])
    session.remember(dataclasses.replace(began, balance="hash"))
    assert found(session, monkeypatch, began).balance == "hash"


def test_what_is_remembered_of_others_that_had_the_name_is_ignored(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.remember(in_containers(steps(session, "hash")[1]))
    began = in_containers(steps(session, "l4")[1])
    assert found(session, monkeypatch, began) == began


def test_a_local_stack_is_its_state_file_and_the_process_that_runs(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = steps(session, "l7")[1]
    session.remember(kept)
    living = dataclasses.replace(kept, servers=kept.servers[:1], server={"pid": 7})
    assert found(session, monkeypatch, living) == dataclasses.replace(kept, server={"pid": 7}), "a dead replica too"
