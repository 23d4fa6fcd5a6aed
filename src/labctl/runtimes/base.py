"""What every runtime can do.

A runtime starts the same rendered repository in its own way: ``local`` as a process, ``compose`` in containers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labctl.guard.admin import Seen
from labctl.runtimes.actions import Action
from labctl.runtimes.clients import Series
from labctl.runtimes.record import Endpoints, Record, Replica


@dataclass(frozen=True)
class Launch:
    """All that a runtime needs to start the servers of a stack, all at once.

    Attributes:
        only: the numbers of those that are started; () is all of them, and what stands before them.
        repository: the rendered model repository, on the host.
        run_dir: the one folder that the server writes (step logs), on the host.
        shm_size: of the container's /dev/shm, as Docker writes it ("256m"); "" is the Compose files' own.
        devices: the GPUs that serve it, as many as ranks; () is the first ones.
        ranks: processes that the engine is spread over; ``launcher`` is the script, in the image, that starts them.
        packages: the layer of packages that the server finds before its own (runtimes/layers.py); "" for none.
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
    devices: Sequence[str] = ()
    launcher: str = ""
    only: Sequence[int] = ()
    packages: str = ""

    @property
    def starting(self) -> list[Replica]:
        return [server for server in self.record.servers if not self.only or server.number in self.only]


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
        """Run ``python`` arguments (such as ``-m labctl.artifacts pull X``) in the serving environment.

        Gives its stdout; its stderr lines are passed to ``listener.progress``.
        """

    def in_image(
        self, title: str, argv: Sequence[str], image: str, gpus: int, devices: Sequence[str] = ()
    ) -> Action[None]:
        """Run a command in the image that :meth:`prepare` made of ``image``, on that many GPUs, or on ``devices``."""

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
