"""More or fewer replicas of a stack while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labctl.manifest.schema import Lab
from labctl.replicas.restart import require_balancer, start
from labctl.runtimes.base import Runtime
from labctl.runtimes.record import Record, Replica
from labctl.stack import ports, replicas
from labctl.stack.interrupts import held_back
from labctl.stack.lock import stack_lock
from labctl.stack.session import Session
from labkit.errors import LabError

MOST = 32


def scale(session: Session, lab: Lab, stack: str, count: int, patience: float = replicas.DRAIN_S) -> Record:
    """Have ``count`` replicas: new ones are ready before they get requests, old ones answer all before they end.

    Args:
        patience: seconds to wait until those that go have answered all; then their streams are cut.

    Raises:
        LabError: it is not up or has no balancer; a new one does not become ready: then the others serve on.
    """
    runtime, record = session.require_up(stack)
    require_balancer(runtime, record)
    if not 1 <= count <= MOST:
        raise LabError(f"{count} is no number of replicas", f"it goes from 1 to {MOST}")
    with stack_lock(session.workspace, stack, f"{replicas.SCALE} {count}"):
        if count > len(record.servers):
            return _more(session, lab, runtime, record, count - len(record.servers))
        if count < len(record.servers):
            return _fewer(session, runtime, record, record.servers[count:], patience)
    return record


def _more(session: Session, lab: Lab, runtime: Runtime, record: Record, count: int) -> Record:
    taken = {one.number for one in record.servers}
    numbers = [number for number in range(1, MOST * 2) if number not in taken][:count]
    new = [Replica(number, place) for number, place in zip(numbers, ports.places(count), strict=True)]
    return start(session, lab, runtime, record, new)


def _fewer(
    session: Session, runtime: Runtime, record: Record, going: Sequence[Replica], patience: float
) -> Record:  # fmt: skip
    numbers = [one.number for one in going]
    session.listener.step(f"draining replica {', '.join(map(str, numbers))}")
    cut = replicas.drain(runtime, record, numbers, patience)
    session.listener.done(replicas.cut_off(cut))
    smaller = replace(record, servers=[one for one in record.servers if one.number not in numbers])
    if record.balance == "client":
        smaller = replace(smaller, endpoints=replicas.all_of(record.endpoints, smaller.servers))
    try:
        replicas.let_go(runtime, record, numbers)
        session.remember(smaller)  # before they end: they are no loss
        for number in numbers:
            runtime.stop(record.stack, number=number).do(session.listener)
    except BaseException:  # they have answered all, and the balancer has let go of them: they end all the same
        with held_back():
            session.remember(smaller)
            for number in numbers:
                runtime.stop(record.stack, force=True, number=number).do(session.listener)
        raise
    for number in numbers:
        session.workspace.folder(record.stack).log_file(number).unlink(missing_ok=True)
    return smaller
