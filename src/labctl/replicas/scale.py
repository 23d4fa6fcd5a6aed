"""More or fewer replicas of a stack while it serves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from labctl.lab import Lab
from labctl.replicas.restart import require_balancer, start_replicas
from labctl.replicas.signals import Signal, Waiting
from labctl.runtimes.lock import Busy, hold_signals_back, holder, stack_lock
from labctl.runtimes.record import Record, Replica
from labctl.stack import replicas
from labctl.stack.ports import free_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack, with_servers
from labkit.errors import LabError

MOST = 32
LOOK_S = 1.0


def scale(session: Session, lab: Lab, stack: str, count: int, patience: float = replicas.DRAIN_S) -> Record:
    """Scale to ``count`` replicas: a new one is ready before it gets requests; an old one answers all before it ends.

    ``patience``: seconds to wait until the old replicas have answered all; then their streams are cut. Raises
    LabError: the stack is not up or has no balancer; a new replica does not become ready (the others serve on).
    """
    running = RunningStack.require_up(session, stack).in_lab(lab)
    record = running.record
    require_balancer(session, record)
    if not 1 <= count <= MOST:
        raise LabError(
            f"{count} replicas are out of range", f"a stack has from 1 to {MOST}", code="replicas-out-of-range"
        )
    with stack_lock(session.workspace, stack, f"{replicas.SCALE} {count}"):
        if count > len(record.servers):
            taken = {server.number for server in record.servers}
            free = (number for number in itertools.count(1) if number not in taken)
            places = free_endpoints(count - len(taken))
            return start_replicas(running, [Replica(next(free), place) for place in places])
        if count < len(record.servers):
            return _fewer(running, record.servers[count:], patience)
    return record


def _fewer(stack: RunningStack, going: Sequence[Replica], patience: float) -> Record:
    session, runtime, record = stack.session, stack.runtime, stack.record
    numbers = [server.number for server in going]
    session.listener.step(f"draining replica {', '.join(map(str, numbers))}")
    cut = replicas.drain(session, record, numbers, patience)
    session.listener.done(replicas.cut_off(cut))
    smaller = with_servers(record, [server for server in record.servers if server.number not in numbers])

    def end(force: bool) -> None:
        session.remember(smaller)  # before they end: they are no loss
        for number in numbers:
            runtime.stop(session.listener, record.stack, force=force, number=number)

    try:
        replicas.forget_servers(session.workspace, record, numbers)
        end(force=False)
    except BaseException:  # they have answered all, and the balancer has let go of them: they end all the same
        with hold_signals_back():
            end(force=True)
        raise
    for number in numbers:
        stack.folder.log_file(number).unlink(missing_ok=True)
    return smaller


@dataclass
class Scaler:
    """Decides from what waits in all replicas, or another signal; one look is not enough.

    Attributes:
        least, most: the numbers of replicas that it stays between.
        target: requests that may wait for each replica.
        patience: looks in a row that must ask for more before there are more; for fewer, ten times as many.
    """

    least: int
    most: int
    target: float = 4.0
    patience: int = 3
    signal: Signal = field(default_factory=Waiting)
    _above: int = field(default=0, init=False)
    _below: int = field(default=0, init=False)

    def decide(self, waiting: float, count: int) -> int:
        """How many replicas there should be, after this look."""
        self._above = self._above + 1 if waiting > self.target * count else 0
        self._below = self._below + 1 if not waiting else 0
        wanted = count
        if self._above >= self.patience:
            wanted = count + 1
        elif self._below >= 10 * self.patience:
            wanted = count - 1
        wanted = min(max(wanted, self.least), self.most)
        if wanted != count:
            self._above = self._below = 0
        return wanted


def parse_bounds(text: str) -> tuple[int, int]:
    """``1:4``. Raises LabError."""
    least, _, most = text.partition(":")
    if least.isdigit() and most.isdigit() and 1 <= int(least) <= int(most) <= MOST:
        return int(least), int(most)
    raise LabError(
        f"--auto {text} cannot be used",
        f"it takes MIN:MAX, from 1 to {MOST}",
        "--auto 1:4",
        code="scale-bounds-invalid",
    )


def autoscale(
    session: Session,
    lab: Lab,
    stack: str,
    scaler: Scaler,
    pause: Callable[[float], object] = time.sleep,
    patience: float = replicas.DRAIN_S,
) -> Iterator[str]:
    """Scale for ever; yields a line for each decision.

    ``patience``: seconds to wait until a replica that goes has answered all; then its streams are cut. Raises
    LabError: the stack is not up or has no balancer, or a new replica does not become ready. While another command
    changes the stack, the loop waits for it.
    """
    gone = False
    while True:
        try:
            running = RunningStack.require_up(session, stack)
            record = running.record
            require_balancer(session, record)
        except LabError:
            # A restart takes it down and up again, and lets go of its lock for a moment in between.
            if gone and not holder(session.workspace, stack):
                raise
            gone = True
            pause(LOOK_S)
            continue
        gone = False
        count, load = len(record.servers), scaler.signal.look(record)
        if (wanted := scaler.decide(load, count)) != count:
            yield f"{count} -> {wanted}: {scaler.signal.why(load, count)}"
            try:
                scale(session, lab, stack, wanted, patience)
                continue
            except Busy as other:
                yield f"{count} stay: {other.what}"
        pause(LOOK_S)
