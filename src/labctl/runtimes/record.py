"""Where the servers of a stack are, and the record by which it is found again.

The stack's state file has it, and beside it the process groups of the stack's parts (``groups``). ``labctl render``
writes the record into ``compose.json``, for a stack that a person brings up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from labctl.options import Options
from labkit import disk
from labkit.errors import LabError

REPLICA = "LABS_REPLICA"  # a server's number, where a stack has several; labserve reads it too
GROUPS = "groups"  # the state file's entry of the process groups, by part
CLIENT = "client"  # the balance under which clients spread their requests themselves, and nobody listens for gRPC


@dataclass(frozen=True)
class Endpoints:
    """``host:port`` of Triton's three services."""

    http: str
    grpc: str
    metrics: str

    @property
    def ports(self) -> list[int]:
        return [int(endpoint.rpartition(":")[2]) for endpoint in vars(self).values()]


def addresses(endpoints: Endpoints) -> dict[str, str]:
    """Endpoints as variables of a shell beside the server: ``TRITON_GRPC`` and the like."""
    return {f"TRITON_{name.upper()}": where for name, where in vars(endpoints).items()}


@dataclass(frozen=True)
class Replica:
    """One server of a stack, and where it itself listens, whatever stands before it. Numbers begin at 1."""

    number: int
    endpoints: Endpoints


@dataclass(frozen=True)
class Record:
    """What is known of a stack that is up (or was).

    Attributes:
        settings: every setting as asked, defaults included.
        models: the models that must be READY.
        endpoints: where clients reach it: its server, or the balancer of its servers.
        balance: how requests are spread over its servers; None for a single server without a balancer.
        options: what was asked when it was brought up, with the GPU that was chosen for it.
        owner: the ``labctl run``/``bench`` process that the stack must not outlive; None after ``labctl up``.
    """

    stack: str
    lab: str
    runtime: str
    profile: str
    settings: Mapping[str, Any]
    models: Sequence[str]
    endpoints: Endpoints
    tokenizer_dir: str | None = None
    balance: str | None = None
    servers: Sequence[Replica] = ()
    options: Options = field(default_factory=Options)
    effective: Mapping[str, Any] = field(default_factory=dict)
    owner: Proc | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", tuple(self.servers) or (Replica(1, self.endpoints),))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, default=str)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record in a text. Raises ValueError."""
        return _adapter().validate_json(text, strict=True)

    def write(self, path: Path) -> None:
        """Write it into a state file, which goes on naming the process groups that it names."""
        disk.atomic_write(path, json.dumps({**dataclasses.asdict(self), GROUPS: read_state(path)[GROUPS]}, default=str))

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a state file. Raises OSError, or ValueError and the like where it is damaged."""
        return cls.from_json(disk.read_text(path))

    @property
    def asked(self) -> Options:
        """The options that bring the stack up again as it is, with what has changed since ``up`` was asked for it."""
        http, grpc, metrics = self.ports
        if self.balance == CLIENT:  # no port listens: any other than the two will do
            grpc = str(self.servers[0].endpoints.ports[1])
        return dataclasses.replace(
            self.options,
            profile=self.profile,
            set=dict(self.settings),
            runtime=self.runtime,
            ports=f"{http},{grpc},{metrics}",
            replicas=len(self.servers),
            balance=self.balance,
        )

    @property
    def ports(self) -> list[str]:
        """Those that a person chose; "0" for gRPC where clients spread their requests themselves: no port listens."""
        http, grpc, metrics = map(str, self.endpoints.ports)
        return [http, "0" if self.balance == CLIENT else grpc, metrics]

    @property
    def scrape_endpoints(self) -> dict[str, str]:
        """Where labctl itself asks: the endpoints, but Triton's counters of each server ("a:1,b:2"), to be summed."""
        if not self.balance:
            return {**vars(self.endpoints)}
        counters = [server.endpoints.metrics for server in self.servers]
        return {**vars(self.endpoints), "metrics": ",".join(counters)}

    def folder(self, number: int) -> int | None:
        """The number that a server's own folders and files go by; None where it is the stack's only one."""
        return number if self.balance else None

    def starting(self, only: Collection[int]) -> list[Replica]:
        """The servers of these numbers; all of them for ()."""
        return [server for server in self.servers if not only or server.number in only]

    def only(self, number: int) -> Record:
        """One server as if it were the whole stack. Raises LabError where the stack has no such server."""
        for server in self.servers:
            if server.number == number:
                return dataclasses.replace(self, endpoints=server.endpoints, servers=[server])
        numbers = ", ".join(str(server.number) for server in self.servers)
        raise LabError(f"{self.stack} has no replica {number}", f"it has: {numbers}", code="replica-unknown")

    def one(self, number: int | None) -> Record:
        """:meth:`only`, for what looks at one server. Raises LabError where there are several and none is named."""
        if number is None and self.balance and len(self.servers) > 1:
            raise LabError(
                f"{self.stack} has {len(self.servers)} replicas, and this looks at one",
                "",
                "--replica K",
                code="replica-ambiguous",
            )
        return self.only(number or self.servers[0].number) if self.balance or number else self

    def orphaned(self) -> bool:
        """True when the process that this stack belongs to has died without tearing it down."""
        return self.owner is not None and not self.owner.alive()


def read_state(state_file: Path) -> dict[str, Any]:
    """Return what a state file holds, damaged or not: there is always a mapping of the groups that it names."""
    state: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        state = disk.read_object(state_file)
    return {**state, GROUPS: groups if isinstance(groups := state.get(GROUPS), dict) else {}}


def name_group(state_file: Path, part: str, group: Mapping[str, Any]) -> None:
    """Have a state file name the process group of a part. Raises LabError: it cannot be written."""
    state = read_state(state_file)
    disk.atomic_write(state_file, json.dumps({**state, GROUPS: {**state[GROUPS], part: group}}))


@functools.cache
def _adapter() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


@dataclass(frozen=True)
class Proc:
    """A process by its pid and its start (seconds since the machine booted): a later process may have the same pid."""

    pid: int
    started: float

    @classmethod
    def current(cls) -> Proc:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Proc:
        return cls(pid, _started(pid))

    def alive(self) -> bool:
        """Whether it is there and is not just waiting to be reaped."""
        try:
            return not self.replaced() and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def replaced(self) -> bool:
        """Whether another process has its number now."""
        try:
            return abs(_started(self.pid) - self.started) >= 0.05
        except (psutil.Error, OSError, ValueError):
            return False


def _started(pid: int) -> float:
    """When a process was started. Raises OSError, or psutil's error, where there is none."""
    if sys.platform != "linux":
        return float(psutil.Process(pid).create_time())
    after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")
