"""A running stack, taken down and brought up again as it was; or only what of it has died; or one replica at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from labctl.errors import LabError
from labctl.manifest.schema import Lab
from labctl.orchestrator import ports, replicas, sound
from labctl.orchestrator.down import down
from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.plan import Choices
from labctl.orchestrator.running import plan_of
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import UpOptions, launch_of, up
from labctl.runtimes.base import Record, Replica, Runtime

READY_S = 180.0


def restart(session: Session, lab: Lab, stack: str) -> Record:
    """Down and up with the same runtime, settings, release, templates and ports.

    Where replicas or their balancer have died, only they are started; the others serve on.

    Raises:
        LabError: it is not up, or cannot be brought up again; where a syntax error is why, it serves on.
    """
    runtime, record = up_now(session, stack)
    if record.balance and heal(session, lab, runtime, record):
        return record
    given = {key: value for key, value in record.settings.items() if key in lab.settings}
    templates = Path(record.templates) if record.templates else None
    options = UpOptions(
        Choices(record.profile, given, record.release, templates), runtime.name, _ports(record),
        expose=record.bind == "0.0.0.0", client_shm=record.client_shm, supervise=record.restarts,
        replicas=len(record.servers), balance=record.balance,
    )  # fmt: skip
    sound.require(session, plan_of(session, lab, runtime, record))
    down(session, stack)
    return up(session, lab, stack, options).record


def up_now(session: Session, stack: str) -> tuple[Runtime, Record]:
    """Raises LabError where it is not up."""
    if running := session.find(stack):
        return running
    raise LabError(f"{stack} is not up", "", f"labctl up {stack}")


def _ports(record: Record) -> str:
    """The ports that the stack has. Clients that spread their requests themselves use none for gRPC: any will do."""
    http, grpc, metrics = record.ports
    return ",".join((http, grpc if int(grpc) else ports.places(1)[0].grpc.rpartition(":")[2], metrics))


def heal(session: Session, lab: Lab, runtime: Runtime, record: Record) -> bool:
    """Start what of a stack has died: replicas, and what stands before them. False where nothing has.

    Raises:
        LabError: a replica does not become ready; the others serve on.
    """
    with stack_lock(session.workspace, record.stack, "restart"):
        dead = replicas.missing(runtime, record)
        ended = runtime.front_ended(record)
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
    workspace, stack = session.workspace, record.stack
    names = ", ".join(str(one.number) for one in wanted)
    for one in wanted:
        runtime.stop(stack, force=True, number=one.number).do(session.listener)  # what its death has left
    moved = {
        one.number: one if ports.still_free(one.endpoints) else Replica(one.number, ports.places(1)[0])
        for one in wanted
    }  # fmt: skip
    servers = {one.number: one for one in record.servers} | moved
    record = replace(record, servers=[servers[number] for number in sorted(servers)])
    if record.balance == "client":
        record = replace(record, endpoints=replicas.all_of(record.endpoints, record.servers))
    plan = plan_of(session, lab, runtime, record)
    replicas.make_room(workspace, record, list(moved.values()))
    session.listener.step(f"replica {names} of {stack}")
    launch = replace(launch_of(workspace, plan, record), only=list(moved))
    try:
        server = runtime.start(launch).do(session.listener)
        replicas.await_ready(session, runtime, plan, server, list(moved.values()), READY_S)
        runtime.spread(record)
        replicas.await_balancer(runtime, record)
    except BaseException:
        for number in moved:
            runtime.stop(stack, force=True, number=number).do(session.listener)
        raise
    session.remember(record)
    session.listener.done("READY")
    return record


def rolling(session: Session, lab: Lab, stack: str, patience: float) -> Record:
    """One replica after the other: nothing new for it, what it has is answered, it ends, it starts again, it is ready.

    Args:
        patience: seconds to wait until a replica has answered all; then its streams are cut.

    Raises:
        LabError: it is not up or has no balancer; a replica does not come back; the others serve on.
    """
    runtime, record = up_now(session, stack)
    require_balancer(runtime, record)
    with stack_lock(session.workspace, stack, "restart"):
        for one in list(record.servers):
            session.listener.step(f"draining replica {one.number}")
            cut = replicas.drain(runtime, record, [one.number], patience)
            session.listener.done(replicas.cut_off(cut))
            replicas.let_go(runtime, record, [one.number])
            runtime.stop(stack, number=one.number).do(session.listener)
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
    if ended := runtime.front_ended(record):
        raise LabError(f"{record.stack} has no balancer", ended, f"labctl restart {record.stack}")
