"""Where the servers of a stack are, and the record by which it is found again.

The record travels with the server itself (an environment variable of the process, a label of the container).
"""

from __future__ import annotations

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

from labctl.options import LOOPBACK, Options
from labkit import nofollow
from labkit.errors import LabError

EPOCH_S = 1e9  # a process whose start is later was counted from 1970, by an earlier version
FORMER = {"timeout": "timeout", "client_shm": "client_shm", "restarts": "supervise"}  # of version 0.1, and now
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
        endpoints: where clients on this machine reach it: its server, or the balancer of its servers.
        published: where other machines reach it, with its token; None unless it is exposed.
        balance: how requests are spread over its servers; "" for a single server without a balancer.
        options: what was asked when it was brought up, with the GPU that was chosen for it.
        owner: the ``labctl run``/``bench`` process that the stack must not outlive; None after ``labctl up``.
        server: the runtime's own way to find the server (``pid`` and ``started``; or the Compose project).
    """

    stack: str
    lab: str
    runtime: str
    profile: str
    settings: Mapping[str, Any]
    models: Sequence[str]
    endpoints: Endpoints
    published: Endpoints | None = None
    tokenizer_dir: str = ""
    balance: str = ""
    servers: Sequence[Replica] = ()
    options: Options = field(default_factory=Options)
    effective: Mapping[str, Any] = field(default_factory=dict)
    owner: Proc | None = None
    server: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", tuple(self.servers) or (Replica(1, self.endpoints),))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, default=str)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record in a text, of version 0.1 too; what only a newer one has is left out. Raises ValueError."""
        data = nofollow.json_object(text)
        if "options" not in data:  # version 0.1 kept them as fields of their own
            options: dict[str, Any] = {key: data[key] for key in ("profile",) if key in data}
            options |= {"set": data.get("settings"), "templates": data.get("templates") or None}
            options |= {new: data[old] for old, new in FORMER.items() if old in data}
            data["options"] = {"expose": data.get("bind", LOOPBACK) != LOOPBACK, **options}
        return _adapter().validate_json(json.dumps(data), strict=True)

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
    def bind(self) -> str:
        return self.options.bind

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach it, and so Envoy asks for its token."""
        return self.options.expose

    @property
    def front(self) -> str:
        """What stands before its servers: "balancer" (also where it is exposed), "Envoy", or "" for nothing."""
        if self.balance:
            return "balancer"
        return "Envoy" if self.exposed else ""

    @property
    def ports(self) -> list[str]:
        """Those that a person chose; "0" for gRPC where clients spread their requests themselves: no port listens."""
        http, grpc, metrics = map(str, (self.published or self.endpoints).ports)
        return [http, "0" if self.balance == CLIENT else grpc, metrics]

    @property
    def scrape_endpoints(self) -> dict[str, str]:
        """Where labctl itself asks: the endpoints, but Triton's counters of each server ("a:1,b:2"), to be summed."""
        if not self.balance:
            return {**vars(self.endpoints)}
        counters = [server.endpoints.metrics for server in self.servers]
        return {**vars(self.endpoints), "metrics": ",".join(counters)}

    def folder(self, number: int) -> int:
        """The number that a server's own folders and files go by; 0 where it is the stack's only one."""
        return number if self.balance else 0

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


@functools.cache
def _adapter() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def merge_records(records: Mapping[int, Record]) -> Record:
    """The record of a stack from the records of its running servers: the newest names the most servers."""
    newest = max(records.values(), key=lambda record: len(record.servers))
    servers = [
        server for number, record in sorted(records.items()) for server in record.servers if server.number == number
    ]
    return dataclasses.replace(newest, servers=servers)


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
        try:
            process = psutil.Process(self.pid)
            started = process.create_time() if self.started > EPOCH_S else _started(self.pid)
            return abs(started - self.started) < 0.05 and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError, ValueError):
            return False


def _started(pid: int) -> float:
    """When a process was started. Raises OSError, or psutil's error, where there is none."""
    if sys.platform != "linux":
        return float(psutil.Process(pid).create_time())
    after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")
