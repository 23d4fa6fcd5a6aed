"""What every runtime can do, and the record by which a running stack is found again.

A runtime starts the same rendered repository in its own way: ``local`` as a process, ``compose`` in containers. The
record of a stack travels with the server itself (an environment variable of the process, a label of the container),
so that a lost or damaged state file never hides a server that runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from labctl.engines.protocol import Builder
from labctl.listener import Listener


@dataclass(frozen=True)
class Endpoints:
    """``host:port`` of Triton's three services."""

    http: str
    grpc: str
    metrics: str


@dataclass(frozen=True)
class Proc:
    """A process told apart from a later one with the same pid.

    ``started`` is psutil's create_time: seconds since the epoch.
    """

    pid: int
    started: float

    @classmethod
    def current(cls) -> Proc:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Proc:
        return cls(pid, psutil.Process(pid).create_time())

    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 0.05
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True)
class Record:
    """What is known of a stack that is up (or was).

    Attributes:
        settings: every setting as asked, defaults included.
        models: the models that must be READY.
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
    effective: Mapping[str, Any] = field(default_factory=dict)
    owner: Proc | None = None
    server: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Raises ValueError, KeyError or TypeError where ``text`` is not a record."""
        data = json.loads(text)
        owner = data.pop("owner", None)
        endpoints = Endpoints(**data.pop("endpoints"))
        return cls(endpoints=endpoints, owner=Proc(**owner) if owner else None, **data)

    def orphaned(self) -> bool:
        """True when the process that this stack belongs to has died without tearing it down."""
        return self.owner is not None and not self.owner.alive()


@dataclass(frozen=True)
class Launch:
    """All that a runtime needs to start one server.

    Attributes:
        repository: the rendered model repository, on the host.
        run_dir: the one folder that the server writes (step logs), on the host.
        bind: the address that the ports are published on; 127.0.0.1 unless ``--expose`` is given.
        shm_size: of the container's /dev/shm, as Docker writes it ("256m"); "" is the Compose files' own.
        ranks: processes that the engine is spread over; ``launcher`` is the script, in the image, that starts them.
        exit_timeout: seconds that Triton gives in-flight requests when it is asked to stop.
    """

    record: Record
    repository: Path
    run_dir: Path
    log_file: Path
    server_args: Sequence[str]
    env: Mapping[str, str]
    bind: str = "127.0.0.1"
    shm_size: str = ""
    exit_timeout: int = 10
    image: str = ""
    ranks: int = 1
    launcher: str = ""


@dataclass(frozen=True)
class Shown:
    """A command that would be run, with the variables that it would be given beyond this process's own.

    ``title`` says what for; ``container`` names what it makes, if it makes one, and of which image.
    """

    title: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    container: str = ""


class Server(Protocol):
    """A server that has been started and is being watched."""

    def exited(self) -> str | None:
        """None while it runs; otherwise how it ended: "exit status 1", "killed by SIGKILL", "OOM-killed"."""

    @property
    def record(self) -> Record:
        """The record, completed with the runtime's own way to find the server."""


class Runtime(Protocol):
    """Where servers run. Every method raises LabError for a foreseeable fault."""

    name: str

    def check(self, profile: str) -> None:
        """Refuse, with a remedy, a machine on which this runtime cannot serve that profile (fast: < 5 s)."""

    def prepare(self, profile: str, listener: Listener, image: str = "") -> None:
        """Make the serving environment ready (build or find images); idempotent."""

    def server_path(self, path: Path) -> str:
        """The path by which the server sees a path of this machine (cache, shipped models, checkout, run folder)."""

    def tool(self, argv: Sequence[str], listener: Listener) -> str:
        """Run ``python`` arguments (such as ``-m labctl.weights pull X``) in the serving environment.

        Returns its stdout; its stderr lines are passed to ``listener.progress``.
        """

    def builder(self, image: str, gpus: int, listener: Listener) -> Builder:
        """The serving image, as an engine's own builder needs it. Raises LabError where there is none."""

    def copy_out(self, image: str, path: str, target: Path, listener: Listener) -> None:
        """Copy a folder out of the image that :meth:`prepare` made of ``image`` into the new folder ``target``."""

    # What the methods of the same name would run, for ``--dry-run``; nothing is asked, nothing is made.

    def show_prepare(self, profile: str, image: str = "") -> list[Shown]: ...
    def show_copy_out(self, image: str, path: str, target: Path) -> list[Shown]: ...
    def show_tool(self, title: str, argv: Sequence[str]) -> list[Shown]: ...
    def show_build(self, title: str, image: str, gpus: int, argv: Sequence[str]) -> list[Shown]: ...
    def show_start(self, launch: Launch) -> list[Shown]: ...
    def show_files(self, launch: Launch) -> list[str]: ...
    def show_client(self, title: str, argv: Sequence[str], stack: str) -> list[Shown]: ...
    def show_stop(self, stack: str) -> list[Shown]: ...

    def start(self, launch: Launch, listener: Listener) -> Server:
        """Start the server and return at once; nothing is left behind when it raises."""

    def find(self, stack: str) -> Record | None:
        """The record of a stack whose server exists now, from reality (not from a state file)."""

    def running(self) -> list[Record]:
        """The records of every stack of this checkout that exists now."""

    def stacks(self) -> set[str]:
        """The names, for ``stop``, of all that something is left of: stacks, and tools of a labctl that was killed."""

    def logs(self, stack: str, follow: bool = False) -> Iterator[str]:
        """The server's log, line by line, without line ends."""

    def stop(self, stack: str, listener: Listener, force: bool = False) -> None:
        """Stop the server gracefully, then for sure, and remove all that belongs to it; a second call is harmless."""

    def leftovers(self, stack: str) -> list[str]:
        """What of the stack is still there, in words ("process 123", "container x", "/dev/shm/..."); [] is clean."""

    def run_client(self, argv: Sequence[str], record: Record | None, out: Path, listener: Listener) -> int:
        """Run ``python`` with ``argv`` where the lab's clients live, output passed through; returns the exit status.

        Args:
            argv: script and arguments, in paths as the client sees them (``client_path``).
            record: the stack that the client talks to; None for a report, which needs no server.
            out: the folder on this machine that the client writes.
        """

    def client_endpoints(self, record: Record) -> Endpoints:
        """The endpoints as the lab's clients reach them."""

    def client_path(self, path: Path) -> str:
        """The path by which a client sees a path of this machine."""
