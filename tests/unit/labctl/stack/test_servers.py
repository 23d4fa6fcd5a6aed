"""The servers of a run go on from phase to phase where nothing but their balancer or their models' files differ."""

from __future__ import annotations

import pytest

from labctl.labs.servers import goes_on
from labctl.options import Options
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
