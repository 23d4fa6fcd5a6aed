"""The three ports of a stack: free before anything is created, or named with who has them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

import psutil

from labctl.errors import LabError
from labctl.runtimes.base import Endpoints, Record

NAMES = ("HTTP", "gRPC", "metrics")


def parse(text: str) -> tuple[int, int, int] | None:
    """``8000,8001,8002``; None for ``auto``. Raises LabError."""
    if text == "auto":
        return None
    try:
        numbers = [int(item) for item in text.split(",")]
        good = len(numbers) == 3 and len(set(numbers)) == 3 and all(0 < n < 65536 for n in numbers)
    except ValueError:
        good, numbers = False, []
    if not good:
        raise LabError(f"--ports {text} cannot be used", "it takes three different ports (HTTP, gRPC, metrics) or auto",
                       "--ports 8000,8001,8002, or --ports auto")  # fmt: skip
    return numbers[0], numbers[1], numbers[2]


def chosen(wanted: str, bind: str) -> Endpoints:
    """The endpoints that ``--ports`` stands for, taken or not. Raises LabError for a text that is no three ports."""
    host = "127.0.0.1" if bind == "0.0.0.0" else bind
    return Endpoints(*(f"{host}:{port}" for port in parse(wanted) or _free_ports(bind)))


def claim(wanted: str, bind: str, running: Sequence[Record]) -> Endpoints:
    """The endpoints for a new stack.

    Raises:
        LabError: a port is taken; it is named, with who listens there as far as that can be seen.
    """
    endpoints = chosen(wanted, bind)
    numbers = [int(endpoint.rpartition(":")[2]) for endpoint in vars(endpoints).values()]
    taken = [f"{name} port {port}{_who(port, running)}" for name, port in zip(NAMES, numbers, strict=True)
             if not _is_free(bind, port)]  # fmt: skip
    if taken:
        raise LabError(
            f"{taken[0]} is already in use",
            "; ".join(f"so is {text}" for text in taken[1:]),
            "--ports auto takes free ones, --ports H,G,M takes yours",
        )
    return endpoints


def _is_free(bind: str, port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((bind, port))
        except OSError:
            return False
    return True


def _free_ports(bind: str) -> tuple[int, int, int]:
    """Three that the kernel picks: not the usual ones, which the next stack may be about to take."""
    with contextlib.ExitStack() as stack:
        picked = []
        for _ in range(3):
            listener = stack.enter_context(socket.socket())
            listener.bind((bind, 0))
            picked.append(int(listener.getsockname()[1]))
    return picked[0], picked[1], picked[2]


def _who(port: int, running: Sequence[Record]) -> str:
    for record in running:
        if f":{port}" in (f":{e.rpartition(':')[2]}" for e in vars(record.endpoints).values()):
            return f" (by stack {record.stack}: labctl down {record.stack})"
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
                return f" (by {psutil.Process(connection.pid).name()}, pid {connection.pid})"
    return ""
