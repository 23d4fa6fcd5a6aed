"""What every runtime can do: each starts the same rendered repository in its own way, as processes or in containers."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from labctl.listener import Listener
from labctl.plan import Plan
from labctl.runtimes.record import Record
from labkit.errors import LabError

# Triton's last words before it waits for clients to close their gRPC streams, which it does for as long as they like.
UNLOADED = "Found 0 live models and 0 in-flight non-inference requests"
LINGER_S = 1.0
DEAD = re.compile(r"the engine is dead \(.*\)(?=: this server ends)")  # labserve/driver.py
STARTED = "Started GRPCInferenceService"  # Triton's words, once its models are loaded
REMOVED = "its container was removed"  # and not by labctl
POLL_S = 0.1
PLAIN = re.compile(r"[A-Za-z0-9_./+,@%=~-]")  # the same as in scripts/setup.sh
Unloaded = Callable[[], bool]
Exited = Callable[[], str | None]  # how a server that is being watched ended ("exit status 1"); None while it runs
Part = int | Literal["balancer"]  # of a stack's log: a replica's, by its number, or the balancer's


@dataclass(frozen=True)
class State:
    """What a runtime finds of a stack at one look.

    Attributes:
        record: where the stack is reached now.
        alive: the numbers of the servers that run.
        ended: how each of the others ended, by number, where that is known.
        balancer_ended: how what stands before the servers ended; None while it runs, or where there is none.
    """

    record: Record
    alive: frozenset[int] = frozenset()
    ended: Mapping[int, str] = field(default_factory=dict)
    balancer_ended: str | None = None

    @property
    def death(self) -> str | None:
        """How the servers that have ended did; None where nobody saw it."""
        names = {number: f"replica {number}: " if self.record.balance else "" for number in self.ended}
        return "; ".join(f"{names[number]}{how}" for number, how in self.ended.items()) or None

    @property
    def removed(self) -> bool:
        """Whether a person has removed its containers."""
        return bool(self.ended) and set(self.ended.values()) == {REMOVED}


class Runtime(Protocol):
    """Where servers run. Methods raise LabError for a foreseeable fault."""

    name: str

    def check(self, profile: str) -> None:
        """Refuse, with a remedy, a machine on which this runtime cannot serve that profile (fast: < 5 s)."""

    def prepare(self, listener: Listener, profile: str, plan: Plan | None = None) -> None:
        """Make what is missing of the serving environment: images, or the folder of backends; what the plan needs."""

    def tool(self, listener: Listener, argv: Sequence[str]) -> str:
        """Run ``python`` arguments in the serving environment; gives its stdout, its stderr lines are progress."""

    def client(self, listener: Listener, argv: Sequence[str] | None, record: Record | None) -> int:
        """Run ``python`` arguments, or a shell for a person, where the clients of a stack run; its exit status.

        Args:
            record: of the stack; None for a report, which needs no server.
        """

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> Exited:
        """Start the servers, or ``only`` those of these numbers, and return at once; nothing is left when it raises."""

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int | None = None) -> None:
        """Stop the servers (or that replica) gracefully, then for sure; nothing of them stays. Harmless if repeated."""

    def state(self, record: Record) -> State:
        """Look what there is of the stack of that record, in reality."""

    def leftovers(self, stack: str) -> list[str]:
        """What of the stack is still there, in words ("process 123", "container x", "/dev/shm/..."); [] is clean."""

    def logs(self, stack: str, follow: bool = False, part: Part | None = None) -> Iterator[str]:
        """The log of the servers and their balancer, or of that part, without line ends."""


def require_plain_path(path: Path) -> None:
    """Raises LabError for a path that the shell which starts Triton's stubs takes for something else."""
    if strange := sorted(set(PLAIN.sub("", str(path)))):
        raise LabError(
            f"Triton cannot serve from {path}",
            f"its python backend takes no {' '.join(map(repr, strange))} in a path",
            "move the folder to a path of plain letters, digits and . _ - (LABS_CACHE names the cache's)",
            code="path-not-plain",
        )


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


def too_late(grace: float) -> str:
    """The note that a server is killed because it did not end in time."""
    return f"the server did not stop within {grace:g} s and is killed"


def why_it_ended(how: str, log: Iterable[str]) -> str:
    """How a server ended; where its engine was dead, what its log says of that: Triton may abort then as well."""
    dead = None
    with contextlib.suppress(LabError):  # there is no log any more
        for line in log:
            if STARTED in line:  # a restarted server writes on in the log of the one before
                dead = None
            elif said := DEAD.search(line):
                dead = said[0]
    return dead or how
