"""What every runtime can do: each starts the same rendered repository in its own way, as processes or in containers."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from labctl.listener import Listener
from labctl.plan import Plan
from labctl.runtimes.envoy.admin import UpstreamHealth
from labctl.runtimes.record import Endpoints, Record
from labkit.errors import LabError

FRONT = -1  # the number of what stands before the servers, where a server's is asked for
# Triton's last words before it waits for clients to close their gRPC streams, which it does for as long as they like.
UNLOADED = "Found 0 live models and 0 in-flight non-inference requests"
LINGER_S = 1.0
DEAD = re.compile(r"the engine is dead \(.*\)(?=: this server ends)")  # labserve/driver.py
EXIT_0 = "exit status 0"  # also Triton's where its engine is dead: it is told to end
REMOVED = "its container was removed"  # and not by labctl
POLL_S = 0.1
Unloaded = Callable[[], bool]


class Server(Protocol):
    """A server that has been started and is being watched."""

    def exited(self) -> str | None:
        """None while it runs; otherwise how it ended: "exit status 1", "killed by SIGKILL", "OOM-killed"."""


class Runtime(Protocol):
    """Where servers run. Methods raise LabError for a foreseeable fault."""

    name: str

    def check(self, profile: str) -> None:
        """Refuse, with a remedy, a machine on which this runtime cannot serve that profile (fast: < 5 s)."""

    def server_path(self, path: Path) -> str:
        """The path by which the server sees a path of this machine (cache, shipped models, checkout, run folder)."""

    def client_path(self, path: Path) -> str:
        """The path by which a client sees a path of this machine."""

    def client_endpoints(self, record: Record) -> Endpoints:
        """The endpoints as the lab's clients reach them."""

    def minutes(self, profile: str, image: str, packages: str) -> Sequence[int]:
        """About how long each thing takes that :meth:`prepare` would make, where that is long."""

    def prepare(self, listener: Listener, profile: str, image: str = "", packages: str = "") -> None:
        """Make what is missing of the serving environment (images; the folder of backends).

        Args:
            packages: the layer that an image has over its own (layers.py); "" for none. The local one is installed.
        """

    def tool(self, listener: Listener, argv: Sequence[str]) -> str:
        """Run ``python`` arguments in the serving environment; gives its stdout, its stderr lines are progress."""

    def in_image(self, listener: Listener, argv: Sequence[str], image: str, gpu: str) -> None:
        """Run a command in the image that :meth:`prepare` made of ``image``, on ``gpu``; "" is the first one."""

    def copy_out(self, listener: Listener, image: str, path: str, target: Path, version: str) -> None:
        """Copy a folder out of the image that :meth:`prepare` made of ``image`` into the new folder ``target``.

        Args:
            version: of TensorRT-LLM, as our table says; a note says so if the image has another.
        """

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> Server:
        """Start the servers, or ``only`` those of these numbers, and return at once; nothing is left when it raises."""

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int = 0) -> None:
        """Stop the servers (or that replica) gracefully, then for sure; nothing of them stays. Harmless if repeated."""

    def front(self, listener: Listener, record: Record) -> None:
        """Start the balancer before servers that run already, in the place of one that has died."""

    def spread(self, record: Record, draining: Collection[int] = ()) -> None:
        """Give the balancer the list of its servers; a draining server gets nothing new."""

    def balancer_view(self, record: Record) -> dict[int, UpstreamHealth]:
        """The servers as the balancer sees them, by number; {} where it cannot be asked."""

    def client(self, listener: Listener, argv: Sequence[str], stack: str) -> int:
        """Run a script with the paths that clients see, for a stack or a report (""); its exit status."""

    def shell(self, listener: Listener, record: Record) -> int:
        """A shell for a person beside a stack that is up, with its addresses as variables; its exit status."""

    def find(self, stack: str) -> Record | None:
        """The record of a stack, with its servers that exist now, from reality (not from a state file)."""

    def running(self) -> list[Record]:
        """The records of every stack of this checkout that exists now, with the servers that do."""

    def stacks(self) -> set[str]:
        """The names, for ``stop``, of all that something is left of: stacks, and tools of a labctl that was killed."""

    def death_of(self, stack: str, number: int = 0) -> str:
        """How the server, or that replica, died last ("killed by SIGFPE", REMOVED); "" where nobody can tell."""

    def front_death(self, record: Record) -> str:
        """How the balancer has ended; "" where it has not, or there is none."""

    def logs(self, stack: str, follow: bool = False, number: int = 0) -> Iterator[str]:
        """The log of the servers and their balancer (or of that replica, or FRONT), without line ends."""

    def leftovers(self, stack: str) -> list[str]:
        """What of the stack is still there, in words ("process 123", "container x", "/dev/shm/..."); [] is clean."""


def wait_until_stopped(living: Callable[[], Collection[Unloaded]], grace: float) -> bool:
    """Wait until all have ended, or have unloaded their models and linger, or ``grace`` seconds are over.

    Args:
        living: for each server that has not ended: whether it has unloaded its models.

    Returns False where something may still be in flight, and is lost when they are killed now.
    """
    deadline, unloaded = time.monotonic() + grace, False
    while checks := living():
        if time.monotonic() >= deadline:
            return unloaded
        if not unloaded and all(has_unloaded() for has_unloaded in checks):
            deadline, unloaded = min(deadline, time.monotonic() + LINGER_S), True
        time.sleep(POLL_S)
    return True


def unloaded_check(log: Path) -> Unloaded:
    """Whether a server whose log this is says so after this call."""
    size = log.stat().st_size if log.exists() else 0

    def has_unloaded() -> bool:
        with contextlib.suppress(OSError), log.open("rb") as stream:
            lost_its_older_half = log.stat().st_size < size
            stream.seek(0 if lost_its_older_half else size)
            return UNLOADED.encode() in stream.read()
        return False

    return has_unloaded


def too_late(grace: float) -> str:
    """The note that a server is killed because it did not end in time."""
    return f"the server did not stop within {grace:g} s and is killed"


def why_it_ended(how: str, log: Iterable[str]) -> str:
    """How a server ended; where Triton ended by itself, what the server's log says of a dead engine."""
    if how == EXIT_0:
        with contextlib.suppress(LabError):  # there is no log any more
            return next((said[0] for line in log if (said := DEAD.search(line))), how)
    return how
