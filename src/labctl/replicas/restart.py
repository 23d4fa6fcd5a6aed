"""A running stack, taken down and brought up again as it was; or only what of it has died; or one replica at a time."""

from __future__ import annotations

from dataclasses import replace

from labctl.manifest.schema import Lab
from labctl.runtimes.base import Runtime
from labctl.runtimes.lock import hold_signals_back, stack_lock
from labctl.runtimes.record import Record, Replica
from labctl.stack import observe, replicas
from labctl.stack.down import down
from labctl.stack.ports import are_still_free, free_endpoints
from labctl.stack.session import Session
from labctl.stack.shipped import require_sound
from labctl.stack.stack import RunningStack, gathered_endpoints
from labctl.stack.up import up
from labkit.errors import LabError


def restart(session: Session, lab: Lab, stack: str) -> Record:
    """Down and up with the same runtime, settings, release, templates and ports, and with Prometheus where it was.

    Where replicas or their balancer have died, only they are started; the others serve on.

    Raises:
        LabError: it is not up, or cannot be brought up again; where a syntax error is why, it serves on.
    """
    runtime, record = session.require_up(stack)
    if record.balance and heal(session, lab, runtime, record):
        return record
    require_sound(session, RunningStack.of(session, lab, runtime, record).plan)
    observed = session.workspace.folder(stack).observe.is_dir()
    down(session, stack)
    again = up(session, lab, stack, record.asked)
    if observed:
        try:
            observe.start(session, again.runtime, again.record, record.asked)
        except LabError:  # its usual ports are another stack's
            observe.start(session, again.runtime, again.record, replace(record.asked, ports="auto"))
    return again.record


def heal(session: Session, lab: Lab, runtime: Runtime, record: Record) -> bool:
    """Start what of a stack has died: replicas, and what stands before them. False where nothing has.

    Raises:
        LabError: a replica does not become ready; the others serve on.
    """
    with stack_lock(session.workspace, record.stack, "restart"):
        dead = replicas.missing_replicas(runtime, record)
        ended = runtime.front_death(record)
        if ended:
            session.listener.step(f"the balancer of {record.stack}")
            runtime.front(record).do(session.listener)
            session.listener.done("started again")
        if dead:
            start(session, lab, runtime, record, dead)
        return bool(dead or ended)


def start(session: Session, lab: Lab, runtime: Runtime, record: Record, wanted: list[Replica]) -> Record:
    """Start those replicas of a stack that is up, wait until they are ready, and let the balancer have them.

    Returns:
        the record with the places that they have now.

    Raises:
        LabError: one does not become ready; nothing of it is left.
    """
    workspace, stack, before = session.workspace, record.stack, record
    names = ", ".join(str(one.number) for one in wanted)
    for one in wanted:
        runtime.stop(stack, force=True, number=one.number).do(session.listener)  # what its death has left
    moved = {
        one.number: one if are_still_free(one.endpoints) else Replica(one.number, free_endpoints(1)[0])
        for one in wanted
    }
    servers = {one.number: one for one in record.servers} | moved
    record = replace(record, servers=[servers[number] for number in sorted(servers)])
    if record.balance == "client":
        record = replace(record, endpoints=gathered_endpoints(record.endpoints, record.servers))
    stack_now = RunningStack.of(session, lab, runtime, record)
    replicas.make_room(workspace, record, list(moved.values()))
    session.listener.step(f"replica {names} of {stack}")
    launch = stack_now.launch(record, tuple(moved))
    try:
        server = runtime.start(launch).do(session.listener)
        replicas.await_ready(session, runtime, stack_now.plan, server, list(moved.values()), record.asked.patience)
        runtime.spread(record)
        replicas.await_balancer(runtime, record)
    except BaseException:
        with hold_signals_back():
            for number in moved:
                runtime.stop(stack, force=True, number=number).do(session.listener)
            runtime.spread(before)  # the balancer does not look for what never came
        raise
    session.remember(record)
    observe.follow_servers(workspace, record)
    session.listener.done("READY")
    return record


def rolling(session: Session, lab: Lab, stack: str, patience: float) -> Record:
    """One replica after the other: nothing new for it, what it has is answered, it ends, it starts again, it is ready.

    Args:
        patience: seconds to wait until a replica has answered all; then its streams are cut.

    Raises:
        LabError: it is not up or has no balancer; a replica does not come back; the others serve on.
    """
    runtime, record = session.require_up(stack)
    require_balancer(runtime, record)
    with stack_lock(session.workspace, stack, "restart"):
        for one in list(record.servers):
            session.listener.step(f"draining replica {one.number}")
            cut = replicas.drain(runtime, record, [one.number], patience)
            session.listener.done(replicas.cut_off(cut))
            try:
                replicas.let_go(runtime, record, [one.number])
                runtime.stop(stack, number=one.number).do(session.listener)
            except BaseException:  # it serves on, or is dead and `labctl restart` starts it
                with hold_signals_back():
                    runtime.spread(record)
                raise
            record = start(session, lab, runtime, record, [one])
    return record


def require_balancer(runtime: Runtime, record: Record) -> None:
    """Raises LabError for a stack that is one server, or whose balancer has died."""
    if not record.balance:
        raise LabError(
            f"{record.stack} is one server without a balancer",
            "its clients talk to it directly",
            f"labctl down {record.stack}, then labctl up {record.stack} --replicas N (--balance l7 for one)",
        )
    if ended := runtime.front_death(record):
        raise LabError(f"{record.stack} has no balancer", ended, f"labctl restart {record.stack}")
