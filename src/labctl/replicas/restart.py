"""A running stack, taken down and brought up again as it was; or only what of it has died; or one replica at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from labctl.lab import Lab
from labctl.runtimes import balancer
from labctl.runtimes.door import USUAL_PORT, door_url, start_door_server
from labctl.runtimes.lock import hold_signals_back, stack_lock
from labctl.runtimes.record import Record, Replica
from labctl.stack import replicas
from labctl.stack.down import down
from labctl.stack.ports import are_still_free, free_endpoints
from labctl.stack.session import Session
from labctl.stack.shipped import require_sound
from labctl.stack.stack import RunningStack, with_servers
from labctl.stack.up import up
from labctl.triton.readiness import start_once_more
from labkit.errors import LabError


def restart(session: Session, lab: Lab, stack: str) -> Record:
    """Down and up with the same runtime, settings, release, templates and ports, and the OpenAI API if it was up.

    Where replicas or what stands before the servers have died, only they are started; the others serve on. Also a stack
    whose only server has died, as it does when its engine is dead.

    Raises LabError: it was not up, or cannot be brought up again; where a syntax error is why, it serves on.
    """
    alive, kept = RunningStack.find(session, stack), session.remembered(stack)
    if alive is None and kept is not None:
        running = RunningStack.of(session, lab, session.runtime(kept.runtime), kept)
    else:
        running = RunningStack.require_up(session, stack).in_lab(lab)
    record = running.record
    if alive and record.balance and heal(running):
        return record
    require_sound(session, running.plan)
    openai = door_url(session.workspace, record)
    down(session, stack)
    record = up(session, lab, stack, record.asked).record
    if openai:
        start_door_server(session.workspace, record, urlsplit(openai).port or USUAL_PORT, session.listener)
    return record


def heal(stack: RunningStack) -> bool:
    """Start what of a stack has died: replicas, and what stands before them. False if nothing has.

    Raises LabError: a replica does not become ready; the others serve on.
    """
    runtime, record, listener = stack.runtime, stack.record, stack.session.listener
    with stack_lock(stack.session.workspace, record.stack, "restart"):
        dead = replicas.missing_replicas(stack)
        if ended := runtime.state(record).balancer_ended:
            listener.step(f"the balancer of {record.stack}")
            balancer.restart_balancer(stack.session.workspace, record, listener)
            listener.done("started again")
        if dead:
            start_replicas(stack, dead)
        return bool(dead or ended)


def start_replicas(stack: RunningStack, wanted: Sequence[Replica]) -> Record:
    """Start those replicas of a stack that is up, wait until they are ready, and let the balancer have them.

    Returns the record with the places that they have now. Raises LabError: one does not become ready; nothing of it
    is left.
    """
    return start_once_more(lambda: _start_replicas(stack, wanted), stack.session.listener.note)


def _start_replicas(stack: RunningStack, wanted: Sequence[Replica]) -> Record:
    session, runtime, before, name = stack.session, stack.runtime, stack.record, stack.name

    def end() -> None:
        for server in wanted:
            runtime.stop(session.listener, name, force=True, number=server.number)

    end()  # after a death, its container or processes may remain
    starting = [
        server if are_still_free(server.endpoints) else Replica(server.number, free_endpoints(1)[0])
        for server in wanted
    ]
    numbers = [server.number for server in starting]
    others = [server for server in before.servers if server.number not in numbers]
    record = with_servers(before, sorted([*others, *starting], key=lambda server: server.number))
    replicas.make_room(session.workspace, record, starting)
    session.listener.step(f"replica {', '.join(map(str, numbers))} of {name}")
    plan = stack.plan
    try:
        exited = runtime.start(session.listener, plan, record, numbers)
        replicas.await_ready(stack, record, starting, exited)
        balancer.assign_servers(session.workspace, record)
        replicas.await_balancer(session, record)
    except BaseException:
        with hold_signals_back():
            end()
            balancer.assign_servers(session.workspace, before)  # the balancer does not look for what never came
        raise
    session.remember(record)
    session.listener.done("READY")
    return record


def rolling(session: Session, lab: Lab, stack: str, patience: float) -> Record:
    """One replica after the other: nothing new for it, what it has is answered, it ends, it starts again, it is ready.

    ``patience``: seconds to wait until a replica has answered all; then its streams are cut. Raises LabError: it is
    not up or has no balancer; a replica does not come back; the others serve on.
    """
    running = RunningStack.require_up(session, stack).in_lab(lab)
    runtime, record = running.runtime, running.record
    require_balancer(session, record)
    with stack_lock(session.workspace, stack, "restart"):
        for server in running.record.servers:
            session.listener.step(f"draining replica {server.number}")
            cut = replicas.drain(session, record, [server.number], patience)
            session.listener.done(replicas.cut_off(cut))
            try:
                replicas.forget_servers(session.workspace, record, [server.number])
                runtime.stop(session.listener, stack, number=server.number)
            except BaseException:  # it serves on, or is dead and `labctl restart` starts it
                with hold_signals_back():
                    balancer.assign_servers(session.workspace, record)
                raise
            record = start_replicas(replace(running, record=record), [server])
    return record


def require_balancer(session: Session, record: Record) -> None:
    """Raises LabError for a stack that is one server, or whose balancer has died."""
    if not record.balance:
        raise LabError(
            f"{record.stack} is one server without a balancer",
            "its clients talk to it directly",
            f"labctl down {record.stack}, then labctl up {record.stack} --replicas N (--balance l7 for one)",
            code="balancer-none",
        )
    replicas.require_living_balancer(session, record)
