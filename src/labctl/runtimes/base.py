"""What every runtime can do, and the record by which a running stack is found again.

A runtime starts the same rendered repository in its own way: ``local`` as a process, ``compose`` in containers. The
record of a stack travels with the server itself (an environment variable of the process, a label of the container),
so that a lost or damaged state file never hides a server that runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from labctl.errors import LabError
from labctl.guard.admin import Seen
from labctl.runtimes.actions import Action
from labctl.runtimes.clients import Series
from labctl.runtimes.proc import Proc


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
        bind: the address that its ports are published on; beyond loopback the guard stands before the server.
        servers: its servers; one, unless ``balance`` says how requests are spread over several. Where the guard has
            the ports of a lone container, that is asked through the guard.
        client_shm: clients may register shared memory.
        restarts: how often a server that died is started again.
        release, templates: the TensorRT-LLM release and the folder of templates that were asked for ("" is none).
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
    bind: str = "127.0.0.1"
    balance: str = ""
    servers: Sequence[Replica] = ()
    client_shm: bool = False
    restarts: int = 0
    release: str = ""
    templates: str = ""
    effective: Mapping[str, Any] = field(default_factory=dict)
    owner: Proc | None = None
    server: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", tuple(self.servers) or (Replica(1, self.endpoints),))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Raises ValueError, KeyError or TypeError where ``text`` is not a record."""
        data = json.loads(text)
        owner = data.pop("owner", None)
        endpoints = Endpoints(**data.pop("endpoints"))
        servers = [Replica(int(one["number"]), Endpoints(**one["endpoints"])) for one in data.pop("servers", ())]
        return cls(endpoints=endpoints, servers=servers, owner=Proc(**owner) if owner else None, **data)

    @property
    def guarded(self) -> bool:
        """Whether strangers can reach it, and so the guard stands before it."""
        return self.bind != "127.0.0.1"

    @property
    def front(self) -> str:
        """What stands before its servers: "guard", "balancer" (which may guard as well), or "" for nothing."""
        return "balancer" if self.balance else "guard" if self.guarded else ""

    @property
    def ports(self) -> list[str]:
        """Of the endpoints; "0" for gRPC where clients spread their requests themselves, and nobody listens."""
        http, grpc, metrics = (endpoint.rpartition(":")[2] for endpoint in vars(self.endpoints).values())
        return [http, "0" if self.balance == "client" else grpc, metrics]

    @property
    def asked(self) -> dict[str, str]:
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


@dataclass(frozen=True)
class Launch:
    """All that a runtime needs to start the servers of a stack, all at once.

    Attributes:
        only: the numbers of those that are started; () is all of them, and what stands before them.
        repository: the rendered model repository, on the host.
        run_dir: the one folder that the server writes (step logs), on the host.
        shm_size: of the container's /dev/shm, as Docker writes it ("256m"); "" is the Compose files' own.
        ranks: processes that the engine is spread over; ``launcher`` is the script, in the image, that starts them.
        exit_timeout: seconds that Triton gives in-flight requests when it is asked to stop.
    """

    record: Record
    repository: Path
    run_dir: Path
    server_args: Sequence[str]
    env: Mapping[str, str]
    shm_size: str = ""
    exit_timeout: int = 10
    image: str = ""
    ranks: int = 1
    launcher: str = ""
    only: Sequence[int] = ()

    @property
    def starting(self) -> list[Replica]:
        return [server for server in self.record.servers if not self.only or server.number in self.only]


def together(records: Mapping[int, Record]) -> Record:
    """The record of a stack with the servers that exist, out of their own records, by number.

    Each knows at least itself; the one that was started last knows most.
    """
    own = [s for number, record in sorted(records.items()) for s in record.servers if s.number == number]
    return dataclasses.replace(max(records.values(), key=lambda record: len(record.servers)), servers=own)


FRONT = -1  # the number of what stands before the servers, where a server's is asked for


class Server(Protocol):
    """A server that has been started and is being watched."""

    def exited(self) -> str | None:
        """None while it runs; otherwise how it ended: "exit status 1", "killed by SIGKILL", "OOM-killed"."""

    def serves(self) -> None:
        """Told once every model answers."""

    @property
    def record(self) -> Record:
        """The record, completed with the runtime's own way to find the server."""


class Runtime(Protocol):
    """Where servers run. Every method raises LabError for a foreseeable fault.

    Whatever changes something is given as an :class:`Action`: making one is pure, carrying it out is not.
    """

    name: str

    def check(self, profile: str) -> None:
        """Refuse, with a remedy, a machine on which this runtime cannot serve that profile (fast: < 5 s)."""

    def server_path(self, path: Path) -> str:
        """The path by which the server sees a path of this machine (cache, shipped models, checkout, run folder)."""

    def client_path(self, path: Path) -> str:
        """The path by which a client sees a path of this machine."""

    def client_endpoints(self, record: Record) -> Endpoints:
        """The endpoints as the lab's clients reach them."""

    # -- what can be done ------------------------------------------------------------------------------------------

    def prepare(self, profile: str, image: str = "", guarded: bool = False) -> Sequence[Action[str]]:
        """Make what is missing of the serving environment (images; the folder of backends), and of a guard's."""

    def tool(self, title: str, argv: Sequence[str]) -> Action[str]:
        """Run ``python`` arguments (such as ``-m labctl.weights pull X``) in the serving environment.

        Gives its stdout; its stderr lines are passed to ``listener.progress``.
        """

    def in_image(self, title: str, argv: Sequence[str], image: str, gpus: int) -> Action[None]:
        """Run a command in the serving image that :meth:`prepare` made of ``image``, on that many GPUs."""

    def copy_out(self, title: str, image: str, path: str, target: Path) -> Action[str]:
        """Copy a folder out of the image that :meth:`prepare` made of ``image`` into the new folder ``target``."""

    def start(self, launch: Launch) -> Action[Server]:
        """Start the servers and return at once; nothing is left behind when it raises."""

    def stop(self, stack: str, force: bool = False, number: int = 0) -> Action[None]:
        """Stop the servers gracefully, then for sure, and remove all that belongs to them; a second call is harmless.

        Args:
            number: this replica alone.
        """

    def front(self, record: Record) -> Action[None]:
        """Start the balancer of servers that are there; one that has died is replaced."""

    def spread(self, record: Record, draining: Collection[int] = ()) -> None:
        """Tell the balancer its servers; those that are draining get nothing new."""

    def seen(self, record: Record) -> dict[int, Seen]:
        """The servers as the balancer sees them, by number; {} where it cannot be asked."""

    def client(self, title: str, argv: Sequence[str], stack: str) -> Action[int]:
        """Run ``python`` with ``argv`` where the lab's clients live, output passed through; gives the exit status.

        Args:
            argv: script and arguments, in paths as the client sees them (``client_path``).
            stack: whom the client talks to; "" for a report, which needs no server.
        """

    def clients(self, stack: str) -> Series:
        """Clients that talk to the stack one after another, in one process (and container) that all of them share."""

    # -- what is there -----------------------------------------------------------------------------------------------

    def find(self, stack: str) -> Record | None:
        """The record of a stack of which a server exists now, from reality (not from a state file).

        Its ``servers`` are those that exist.
        """

    def running(self) -> list[Record]:
        """The records of every stack of this checkout that exists now, with the servers that do."""

    def stacks(self) -> set[str]:
        """The names, for ``stop``, of all that something is left of: stacks, and tools of a labctl that was killed."""

    def ended(self, stack: str, number: int = 0) -> str:
        """How the server, or that replica, died last ("killed by SIGFPE"); "" where it has not, or nobody can tell."""

    def front_ended(self, record: Record) -> str:
        """What of the guard or balancer before the servers has ended, and how; "" where nothing has."""

    def logs(self, stack: str, follow: bool = False, number: int = 0) -> Iterator[str]:
        """The log of the servers and what stands before them, line by line, without line ends.

        Args:
            number: of this replica alone, or of FRONT.
        """

    def leftovers(self, stack: str) -> list[str]:
        """What of the stack is still there, in words ("process 123", "container x", "/dev/shm/..."); [] is clean."""
