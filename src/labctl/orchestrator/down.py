"""Take stacks down, and check that nothing of them is left; sweep away what a killed labctl left behind."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence

from labctl.errors import LabError
from labctl.orchestrator import stuck
from labctl.orchestrator.clock import Clock
from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.session import Session
from labctl.runtimes import observers
from labctl.runtimes.base import Runtime


def take_down(session: Session, runtime: Runtime, stack: str, force: bool = False) -> None:
    """Stop a stack on its runtime and make sure that nothing of it is left. Ctrl-C meanwhile makes it forceful.

    Raises:
        LabError: something of it is still there; it is named.
    """
    if force:
        with _deaf_to_ctrl_c():
            return _take_down(session, runtime, stack, force)
    try:
        _take_down(session, runtime, stack, force)
    except KeyboardInterrupt:
        take_down(session, runtime, stack, force=True)
        raise


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Forceful means bounded: it is quicker to end it than to be interrupted and leave something behind.

    Only the main thread hears Ctrl-C, and only there may this be changed (``labctl learn`` checks in another one).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _take_down(session: Session, runtime: Runtime, stack: str, force: bool) -> None:
    run_dir = session.workspace.run_dir(stack)
    folders = (run_dir, *run_dir.glob("replica-*"))
    for folder in folders:
        with contextlib.suppress(LabError):  # Triton ends when what it executes has ended: that must not stand still
            Clock(folder, ()).run()
    if not force and (endless := [sentence for folder in folders for sentence in stuck.stuck(folder)]):
        session.listener.note(f"{endless[0].partition(';')[0]}: the server is killed")
        force = True
    runtime.stop(stack, force).do(session.listener)
    for _ in _until(5.0):
        if not (left := runtime.leftovers(stack)):
            break
    else:
        raise LabError(f"something of {stack} is still there", "", f"labctl down {stack}", details=left)
    shutil.rmtree(observers.folder(session.workspace, stack), ignore_errors=True)
    session.forget(stack)


def _until(seconds: float) -> Iterator[int]:
    """Attempts with a short pause between them, until the time is over."""
    deadline = time.monotonic() + seconds
    for attempt in itertools.count():
        yield attempt
        if time.monotonic() >= deadline:
            return
        time.sleep(0.1)


def down(session: Session, stack: str) -> bool:
    """Take one stack down, wherever it runs; True if there was anything to do."""
    with stack_lock(session.workspace, stack, "down"):
        there = session.find(stack) is not None or session.remembered(stack) is not None
        for name in ("local", "compose"):
            runtime = session.runtime(name)
            try:
                left = runtime.leftovers(stack)
            except LabError:
                continue  # no engine answers, so nothing of ours runs on it
            if left:
                there = True
                take_down(session, runtime, stack)
        session.forget(stack)
        return there


def sweep(session: Session, but_for: str = "") -> list[str]:
    """Take down the stacks whose ``run`` or ``bench`` died without doing so (kill -9)."""
    swept = []
    for runtime, record in session.running():
        if record.orphaned():
            session.listener.note(f"taking down {record.stack}, left behind by a labctl that was killed")
            with (
                contextlib.nullcontext()
                if record.stack == but_for
                else stack_lock(session.workspace, record.stack, "down")
            ):
                take_down(session, runtime, record.stack)
            swept.append(record.stack)
    return swept


def down_all(session: Session) -> Sequence[str]:
    """Take every stack of this checkout down; the names of those that were there."""
    names = {path.parent.name for path in session.workspace.state.glob("*/state.json")}
    for runtime in (session.runtime("local"), session.runtime("compose")):
        with contextlib.suppress(LabError):  # no engine answers, so nothing of ours runs on it
            names |= runtime.stacks()
    return [name for name in sorted(names) if down(session, name)]
