"""The servers of a stack: how requests are spread over them, when they are ready, how one comes and goes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from labctl.runtimes import balancer
from labctl.runtimes.record import CLIENT, Record, Replica
from labctl.stack import faults
from labctl.stack.ports import chosen_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, with_servers
from labctl.triton.readiness import ServerOutside, wait_ready
from labctl.triton.server_api import ModelState
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.waiting import attempts

LOOK_S = 0.1
SEEN_S = 30.0  # seconds; a balancer that has not found a ready server by then never will
DRAIN_S = 120.0
FORGET_S = 5.0
SCALE = "scale"  # what `labctl scale` calls itself in the lock's note, with the number that it wants


def replicas_in_words(count: int) -> str:
    """ "1 replica", "3 replicas"."""
    return f"{count} replica{'s' if count > 1 else ''}"


def cut_off(streams: int) -> str:
    """A sentence about the streams that are still open when a server's draining ends."""
    if not streams:
        return "nothing is in flight"
    return f"{streams} streams are cut" if streams > 1 else "1 stream is cut"


def change_balance(session: Session, record: Record, policy: str | None, asked: str) -> Record:
    """Spread requests in another way: the servers stay, and their balancer is started again.

    ``asked``: the ports that the stack was given ("auto" or three). Under ``client`` the balancer has no gRPC port.
    Returns the record as it is then. Raises LabError where the balancer does not find every server.
    """
    session.listener.step(f"the balancer of {record.stack}, {policy}")
    front = record.endpoints
    if record.balance == CLIENT:
        front = replace(front, grpc=chosen_endpoints(asked).grpc)
    turned = with_servers(replace(record, balance=policy, endpoints=front), record.servers)
    balancer.restart_balancer(session.workspace, turned, session.listener)
    await_balancer(session, turned)
    session.listener.done("READY")
    return turned


def make_room(workspace: Workspace, record: Record, servers: Sequence[Replica]) -> None:
    """Make what each replica writes into: a folder for its step logs, and its log."""
    folder = workspace.folder(record.stack)
    for server in servers:
        if number := record.folder(server.number):
            folder.run_dir(number).mkdir(parents=True, exist_ok=True)
            atomic_write(folder.log_file(number), b"", mode=0o600)


def missing_servers(stack: RunningStack) -> str | None:
    """The replicas, or the balancer, that have died of a stack that was up before; None if all of them are there."""
    state = stack.runtime.state(stack.record)
    gone = [server.number for server in stack.record.servers if server.number not in state.alive]
    if state.balancer_ended or not gone:
        return state.balancer_ended
    return "; ".join(f"replica {number} is gone" for number in gone) if stack.record.balance else "it is gone"


def missing_replicas(stack: RunningStack) -> list[Replica]:
    """The servers that the stack should have and that no longer exist."""
    alive = stack.runtime.state(stack.record).alive
    return [server for server in stack.record.servers if server.number not in alive]


def await_ready(
    stack: PlannedStack, record: Record, wanted: Sequence[Replica], exited: Callable[[], str | None]
) -> Sequence[ModelState]:
    """Return the models once every one of them answers on the ``wanted`` servers, which load side by side.

    Raises LabError: one ended (``exited`` says how), cannot load a model, or the stack's patience is over for all.
    """
    runtime, name, folder = stack.runtime, stack.name, stack.folder
    began = time.monotonic()
    states: Sequence[ModelState] = ()
    for server in wanted:
        number = record.folder(server.number)
        where = f"replica {number}: " if number else ""
        endpoints = server.endpoints if number else record.endpoints
        states = wait_ready(
            endpoints.http,
            stack.plan.served.models,
            stack.plan.served.probes,
            ServerOutside(
                exited,
                tail=functools.partial(faults.tail, runtime, name, number),
                log=functools.partial(faults.whole_log, runtime, name, number),
                stuck=faults.stuck_check(folder.run_dir(number)),
            ),
            timeout=stack.options.patience,
            spent=time.monotonic() - began,
            progress=functools.partial(_report, stack.session, where),
            secret=folder.read_secret(),
        )
    return states


def _report(session: Session, where: str, text: str) -> None:
    session.listener.progress(where + text)


def require_living_balancer(session: Session, record: Record) -> None:
    """Raises LabError where what stands before the servers has died."""
    if ended := session.runtime(record.runtime).state(record).balancer_ended:
        raise LabError(f"{record.stack} has no balancer", ended, f"labctl restart {record.stack}", code="balancer-none")


def await_balancer(session: Session, record: Record) -> None:
    """Return when the balancer sends requests to every server of the record. Raises LabError where it does not."""
    for _ in attempts(SEEN_S, LOOK_S):
        seen = balancer.upstreams(session.workspace, record)
        healthy = {number for number, health in seen.items() if health.healthy}
        ill = [str(server.number) for server in record.servers if server.number not in healthy]
        if not ill:
            return
        require_living_balancer(session, record)
    raise LabError(
        f"the balancer of {record.stack} finds no ready server at replica {', '.join(ill)}",
        "",
        f"labctl status {record.stack}; labctl logs {record.stack}",
        code="balancer-without-servers",
    )


def forget_servers(workspace: Workspace, record: Record, numbers: Collection[int]) -> None:
    """The balancer forgets servers that are drained: at its end Triton waits until its connections are closed."""
    others = replace(record, servers=[server for server in record.servers if server.number not in numbers])
    balancer.assign_servers(workspace, others)
    for _ in attempts(FORGET_S, LOOK_S):
        if not balancer.upstreams(workspace, record).keys() & numbers:
            return


def drain(session: Session, record: Record, numbers: Collection[int], patience: float = DRAIN_S) -> int:
    """Give those servers nothing new, and wait until they have answered all.

    Returns requests (streams; connections under l4) that were still open after ``patience`` seconds. Raises
    LabError: the balancer does not answer. If the wait does not end well (Ctrl-C too), they get requests again.
    """
    balancer.assign_servers(session.workspace, record, numbers)
    try:
        return _await_drained(session, record, numbers, patience)
    except BaseException:
        balancer.assign_servers(session.workspace, record)
        raise


def _await_drained(session: Session, record: Record, numbers: Collection[int], patience: float) -> int:
    """Wait until nothing is open on them, for ``patience`` seconds at most. Returns how many requests still are."""
    quiet = active = 0
    for _ in attempts(patience, LOOK_S):
        if not (seen := balancer.upstreams(session.workspace, record)):
            require_living_balancer(session, record)
        draining = [seen[number] for number in numbers if number in seen and seen[number].draining]
        active = sum(health.active for health in draining)
        quiet = quiet + 1 if len(draining) == len(numbers) and not active else 0
        if quiet == 2:  # once is not enough: a worker of Envoy's may not have read yet that they are draining
            return 0
    return active
