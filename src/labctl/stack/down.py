"""Take stacks down, and check that nothing of them is left."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from labctl.clock import CONTROL
from labctl.runtimes.base import Runtime
from labctl.runtimes.lock import hold_signals_back, stack_lock
from labctl.stack import faults
from labctl.stack.session import Session, Unknown
from labkit.errors import LabError
from labkit.evidence.steplog import run_folders
from labkit.waiting import attempts

GONE_S, LOOK_S = 5.0, 0.1


def take_down(session: Session, runtime: Runtime, stack: str, force: bool = False) -> None:
    """Stop a stack on its runtime and make sure that nothing of it is left.

    Ctrl-C or SIGTERM meanwhile makes it forceful. A forceful end is bounded, so it is not interrupted.

    Raises LabError: something of it is still there; it is named.
    """
    if force:
        with hold_signals_back():
            return _take_down(session, runtime, stack, force)
    try:
        _take_down(session, runtime, stack, force)
    except Exception:
        raise
    except BaseException:  # Ctrl-C; or SIGTERM, which the command line raises in a way of its own
        take_down(session, runtime, stack, force=True)
        raise
    return None


def _take_down(session: Session, runtime: Runtime, stack: str, force: bool) -> None:
    folders = run_folders(session.workspace.folder(stack).run_dir())
    for folder in folders:
        with contextlib.suppress(OSError):  # Triton ends after its executions, so the clock must not hold one
            (folder / CONTROL).unlink(missing_ok=True)
    stuck = [] if force else [sentence for folder in folders for sentence in faults.stuck_sentences(folder)]
    if stuck:
        session.listener.note(f"{stuck[0].partition(';')[0]}: the server is killed")
        force = True
    runtime.stop(session.listener, stack, force)
    if all(left := runtime.leftovers(stack) for _ in attempts(GONE_S, LOOK_S)):
        raise LabError(
            f"something of {stack} is still there", "", f"labctl down {stack}", details=left, code="down-incomplete"
        )
    session.forget(stack)


def down(session: Session, stack: str) -> bool:
    """Take one stack down, wherever it runs; True if there was anything to do.

    Raises LabError: something of it is still there, or its runtime cannot be asked (Unknown): its state is kept.
    """
    with stack_lock(session.workspace, stack, "down"):
        was_up, files = session.remembered(stack) is not None, session.container_files(stack)
        local, compose = session.runtimes
        for runtime in [local] if was_up and not files else [local, compose]:
            try:
                left = runtime.leftovers(stack)
            except LabError as silence:
                if files:
                    raise Unknown.of(stack, silence, files) from silence
                continue  # no file says that the stack has containers
            if left:
                was_up = True
                take_down(session, runtime, stack)
        session.forget(stack)
        return was_up


def down_all(session: Session) -> Sequence[str]:
    """Take every stack of this checkout down; the names of the stacks that were up.

    Raises LabError: one of them cannot be taken down; all others are taken down first.
    """
    taken, failed = [], None
    for name in sorted(session.look()[0]):
        try:
            taken += [name] if down(session, name) else []
        except LabError as error:
            failed = failed or error
    if failed:
        failed.details += tuple(f"{name} is down" for name in taken)
        raise failed
    return taken
