"""What is asked of a stack, where its servers are, and the record by which it is found again.

The record travels with the server itself (an environment variable of the process, a label of the container), so that
a lost or damaged state file never hides a server that runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.runtimes import typed
from labctl.runtimes.proc import Proc
from labkit import nofollow
from labkit.errors import LabError

PATIENCE_S = {"cpu": 180.0, "gpu": 900.0}  # by profile, where a person says nothing
ANY_ADDRESS, LOOPBACK = "0.0.0.0", "127.0.0.1"
CLIENT = "client"  # the balance under which clients spread their requests themselves, and nobody listens for gRPC


@dataclass(frozen=True)
class Choices:
    """What a person chose of a stack's plan: the options of ``render`` and of everything that starts it."""

    profile: str = "cpu"
    set: Mapping[str, Any] = field(default_factory=dict)
    release: str = ""
    templates: Path | None = None
    gpus: Sequence[str] = ()  # numbers or UUIDs; () is the first ones


@dataclass(frozen=True)
class UpOptions:
    """The options of ``labctl up``; each has the name of its command line option."""

    choices: Choices = field(default_factory=Choices)
    runtime: str = "auto"
    ports: str = "8000,8001,8002"
    timeout: float | None = None
    expose: bool = False
    client_shm: bool = False
    supervise: int = 0
    replicas: int | None = None
    balance: str = ""

    @property
    def fronted(self) -> bool:
        """Whether Envoy stands before the server."""
        return self.expose or bool(self.balance) or (self.replicas or 1) > 1

    @property
    def bind(self) -> str:
        """The address that the ports are published on."""
        return ANY_ADDRESS if self.expose else LOOPBACK

    @property
    def patience(self) -> float:
        """Seconds to wait until every model answers."""
        return PATIENCE_S[self.choices.profile] if self.timeout is None else self.timeout

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UpOptions:
        """Raises KeyError or TypeError where these are no options."""
        choices = data["choices"]
        templates = choices["templates"]
        if not isinstance(templates, str | None):
            raise TypeError(f"templates cannot be {templates!r:.80}")
        own = typed.load(Choices, choices, templates=Path(templates) if templates else None)
        return typed.load(cls, data, choices=dataclasses.replace(own, gpus=tuple(own.gpus)))

    @classmethod
    def from_former(cls, data: Mapping[str, Any]) -> UpOptions:
        """The options in a record of version 0.1, which kept them as fields of its own."""
        former = typed.load(_Former, data)
        templates = Path(former.templates) if former.templates else None
        choices = Choices(former.profile, former.settings, former.release, templates, tuple(former.gpus))
        return cls(choices, timeout=former.timeout, expose=former.bind != LOOPBACK, client_shm=former.client_shm,
                   supervise=former.restarts)  # fmt: skip


@dataclass(frozen=True)
class _Former:
    profile: str
    settings: Mapping[str, Any]
    bind: str = LOOPBACK
    client_shm: bool = False
    restarts: int = 0
    timeout: float | None = None
    release: str = ""
    templates: str = ""
    gpus: Sequence[str] = ()


@dataclass(frozen=True)
class Endpoints:
    """``host:port`` of Triton's three services."""

    http: str
    grpc: str
    metrics: str


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
        endpoints: where its clients reach it: its server, or what stands before its servers.
        balance: how requests are spread over its servers; "" for a single server without a balancer.
        servers: its servers; one, unless ``balance`` says how requests are spread over several. Where the guard has
            the ports of a lone container, that is asked through the guard.
        options: what was asked when it was brought up, with the release that was chosen for it.
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
    tokenizer_dir: str = ""
    balance: str = ""
    servers: Sequence[Replica] = ()
    options: UpOptions = field(default_factory=UpOptions)
    effective: Mapping[str, Any] = field(default_factory=dict)
    owner: Proc | None = None
    server: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", tuple(self.servers) or (Replica(1, self.endpoints),))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, default=str)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Raises ValueError, KeyError or TypeError where ``text`` is not a record. A record of version 0.1 is one."""
        data = nofollow.json_object(text)
        owner = data.get("owner")
        servers = [typed.load(Replica, one, endpoints=typed.load(Endpoints, one["endpoints"]))
                   for one in data.get("servers", ())]  # fmt: skip
        options = UpOptions.from_json(data["options"]) if "options" in data else UpOptions.from_former(data)
        return typed.load(
            cls, data, endpoints=typed.load(Endpoints, data["endpoints"]), servers=servers, options=options,
            owner=None if owner is None else typed.load(Proc, owner),
        )  # fmt: skip

    @property
    def asked(self) -> UpOptions:
        """The options that bring the stack up again as it is: nothing in them is left to be chosen.

        Settings, replicas and their balancer may be others than ``up`` was asked for: they change while it runs.
        """
        choices = dataclasses.replace(self.options.choices, profile=self.profile, set=dict(self.settings))
        http, grpc, metrics = self.ports
        if self.balance == CLIENT:  # any will do, such as that of a server
            grpc = self.servers[0].endpoints.grpc.rpartition(":")[2]
        return dataclasses.replace(
            self.options, choices=choices, runtime=self.runtime, ports=f"{http},{grpc},{metrics}",
            replicas=len(self.servers), balance=self.balance,
        )  # fmt: skip

    @property
    def bind(self) -> str:
        return self.options.bind

    @property
    def guarded(self) -> bool:
        """Whether strangers can reach it, and so the guard stands before it."""
        return self.options.expose

    @property
    def front(self) -> str:
        """What stands before its servers: "guard", "balancer" (which may guard as well), or "" for nothing."""
        return "balancer" if self.balance else "guard" if self.guarded else ""

    @property
    def ports(self) -> list[str]:
        """Of the endpoints; "0" for gRPC where clients spread their requests themselves, and nobody listens."""
        http, grpc, metrics = (endpoint.rpartition(":")[2] for endpoint in vars(self.endpoints).values())
        return [http, "0" if self.balance == CLIENT else grpc, metrics]

    @property
    def scrape_endpoints(self) -> dict[str, str]:
        """Where labctl itself asks: the endpoints, but Triton's counters of each server ("a:1,b:2"), to be summed."""
        counters = [server.endpoints.metrics for server in self.servers] if self.balance else [self.endpoints.metrics]
        return {**vars(self.endpoints), "metrics": ",".join(counters)}

    def folder(self, number: int) -> int:
        """The number that a server's own folders and files go by; 0 where it is the stack's only one."""
        return number if self.balance else 0

    def only(self, number: int) -> Record:
        """One server as if it were the whole stack. Raises LabError where the stack has no such server."""
        for server in self.servers:
            if server.number == number:
                return dataclasses.replace(self, endpoints=server.endpoints, servers=[server])
        there = ", ".join(str(server.number) for server in self.servers)
        raise LabError(f"{self.stack} has no replica {number}", f"it has: {there}")

    def one(self, number: int | None) -> Record:
        """:meth:`only`, for what looks at one server. Raises LabError where there are several and none is named."""
        if number is None and self.balance and len(self.servers) > 1:
            raise LabError(f"{self.stack} has {len(self.servers)} replicas, and this looks at one", "", "--replica K")
        return self.only(number or self.servers[0].number) if self.balance or number else self

    def orphaned(self) -> bool:
        """True when the process that this stack belongs to has died without tearing it down."""
        return self.owner is not None and not self.owner.alive()


def together(records: Mapping[int, Record]) -> Record:
    """The record of a stack with the servers that exist, out of their own records, by number.

    Each knows at least itself; the one that was started last knows most.
    """
    own = [s for number, record in sorted(records.items()) for s in record.servers if s.number == number]
    return dataclasses.replace(max(records.values(), key=lambda record: len(record.servers)), servers=own)
