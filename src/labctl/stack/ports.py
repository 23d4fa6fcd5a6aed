"""Ports for servers: the ones that ``--ports`` names, or free ones; and which program listens on a taken one."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import psutil

from labctl.options import LOOPBACK
from labctl.runtimes.record import Endpoints, Record
from labkit.errors import LabError

NAMES = ("HTTP", "gRPC", "metrics")
LOWEST, ENOUGH = 10_000, 1_000
CLIENTS_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # ports of connections to elsewhere, see ip(7)
CLIENTS_FROM = 32_768  # where the kernel does not say
# Triton's words, the kernel's (Envoy, Docker), and Docker's own.
LOST = re.compile(r"Socket '\S+' already in use|address already in use|port is already allocated", re.IGNORECASE)

RunningRecords = Callable[[], Sequence[Record]]  # the stacks that run: asked for where a port is taken


def named_endpoints(ports: str) -> Endpoints | None:
    """Where the ports of ``--ports`` are; None for ``auto``. Raises LabError if the text is not three ports."""
    if ports == "auto":
        return None
    with contextlib.suppress(ValueError):
        numbers = [int(item) for item in ports.split(",")]
        if len(numbers) == len(set(numbers)) == 3 and all(0 < number < 65536 for number in numbers):
            return Endpoints(*(f"{LOOPBACK}:{number}" for number in numbers))
    raise LabError(
        f"--ports {ports} cannot be used",
        "it takes three different ports (HTTP, gRPC, metrics) or auto",
        "--ports 8000,8001,8002, or --ports auto",
        code="ports-invalid",
    )


def chosen_endpoints(wanted: str) -> Endpoints:
    """The endpoints that ``--ports`` stands for, taken or not. Raises LabError if the text is not three ports."""
    return named_endpoints(wanted) or free_endpoints(1)[0]


def claim_endpoints(wanted: str, running: RunningRecords = tuple) -> Endpoints:
    """The endpoints for a new stack. Raises LabError as :func:`require_free` does."""
    endpoints = chosen_endpoints(wanted)
    named = dict(zip(NAMES, endpoints.ports, strict=True))
    require_free(named, running, "--ports auto takes free ones, --ports H,G,M takes yours")
    return endpoints


def require_free(named: Mapping[str, int], running: RunningRecords, remedy: str) -> None:
    """Raise LabError where one of these ports is taken; the error names it, and the program that listens there."""
    taken = [f"{name} port {port}{_who(port, running)}" for name, port in named.items() if not _is_free(port)]
    if taken:
        why = "; ".join(f"so is {text}" for text in taken[1:])
        raise LabError(f"{taken[0]} is already in use", why, remedy, code="port-taken")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_endpoints(count: int) -> list[Endpoints]:
    """Endpoints for ``count`` servers; no port stands twice."""
    picked = iter(free_ports(3 * count))
    return [Endpoints(*(f"{LOOPBACK}:{next(picked)}" for _ in NAMES)) for _ in range(count)]


def are_still_free(endpoints: Endpoints) -> bool:
    """Whether the ports of a server that has ended are still free."""
    return all(_is_free(port) for port in endpoints.ports)


def lost_port(error: LabError) -> bool:
    """Whether a server did not start because another program had taken one of its ports meanwhile."""
    return any(LOST.search(text) for text in (error.what, error.why, *error.details))


def free_ports(count: int) -> list[int]:
    """Free ports, none of them twice in this process."""
    offered, most = _offered()
    picked: list[int] = []
    for port in itertools.islice(offered, most):
        if _is_free(port):
            picked.append(port)
        if len(picked) == count:
            return picked
    raise LabError(f"no {count} ports are free", f"{most} were tried", "labctl down --all", code="ports-exhausted")


@cache
def _offered() -> tuple[Iterator[int], int]:
    """Ports in random order, and how many there are: above the usual ones, which the next stack may be about to take.

    Ports that the kernel gives to outgoing connections are left out: a server listens only seconds after the choice.
    """
    first = CLIENTS_FROM
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = int(CLIENTS_RANGE.read_text(encoding="ascii").split()[0])
    numbers = range(LOWEST, first if first - LOWEST >= ENOUGH else 2**16)
    return itertools.cycle(random.SystemRandom().sample(numbers, len(numbers))), len(numbers)


def _who(port: int, running: RunningRecords) -> str:
    """ " (by ...)": the stack or the program that listens on a port, where that can be known."""
    for record in running():
        places = [record.endpoints, *(server.endpoints for server in record.servers)]
        if any(port in place.ports for place in places):
            return f" (by stack {record.stack}: labctl down {record.stack})"
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
                return f" (by {psutil.Process(connection.pid).name()}, pid {connection.pid})"
    return ""
