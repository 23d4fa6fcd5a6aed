"""A stack that runs: the plan that it follows today, its log, and its faults in the words of who edits its models."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from labctl.clock.clock import Clock
from labctl.runtimes.base import Runtime
from labctl.runtimes.record import Record
from labctl.stack import faults, stuck
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.triton.readiness import LOG_TAIL
from labkit.errors import LabError

GPU_DEVICE = Path("/dev/nvidiactl")
NO_GPU = re.compile(r"NVML|CudaDriverHelper|pinned system memory|CUDA memory pool|DCGM|no CUDA-capable device")


def whole_log(runtime: Runtime, stack: str, number: int = 0) -> list[str]:
    """The log of the stack, or of that replica; [] where there is none."""
    with contextlib.suppress(LabError, OSError):
        return list(runtime.logs(stack, number=number))
    return []


def tail(runtime: Runtime, stack: str, number: int = 0) -> list[str]:
    """The last lines of that log: the errors, where there are any.

    What Triton says of a missing GPU is no news on a machine that has none.
    """
    has_gpu = GPU_DEVICE.exists()
    every = [line for line in whole_log(runtime, stack, number) if has_gpu or not NO_GPU.search(line)]
    errors = [line for line in every if re.match(r"E\d{4} ", line) or "error" in line.lower()]  # E and month and day
    return (errors or every)[-LOG_TAIL:]


def explainer(stack: RunningStack, names: Mapping[str, str] | None = None) -> faults.Explain:
    """What tells an error of the stack in a person's files; it changes nothing where today's templates make no plan."""
    try:
        return faults.explainer(stack.plan, stack.runtime, lambda: whole_log(stack.runtime, stack.name), names)
    except LabError:
        return lambda text: text


def in_your_files(stack: RunningStack, names: Mapping[str, str] | None = None) -> faults.Explain:
    """What puts a person's files in the place of the served copies, and does no more."""
    try:
        return faults.in_your_files(stack.plan, stack.runtime, names)
    except LabError:
        return lambda text: text


def stuck_models(session: Session, stack: str, explain: faults.Explain, number: int = 0) -> list[str]:
    """What the stack's models, or that replica's, say of executions that do not come back."""
    return [explain(sentence) for sentence in stuck.stuck(session.workspace.folder(stack).run_dir(number))]


def standing_still(session: Session, record: Record) -> str:
    """Says that the clock of a stack stands still, and how to let it run; "" while it runs."""
    folders = [
        session.workspace.folder(record.stack).run_dir(record.folder(server.number)) for server in record.servers
    ]
    still = dict.fromkeys(model for folder in folders for model in Clock(folder, tuple(record.models)).paused)
    if not still:
        return ""
    return f"The clock of {', '.join(still)} stands still, so no answer comes: labctl clock {record.stack} run"


def refuse_stuck(session: Session, record: Record, explain: faults.Explain) -> None:
    """Raise LabError where an execution of the stack does not come back: a measurement of it would have no end."""
    for server in record.servers:
        if stuck := stuck_models(session, record.stack, explain, record.folder(server.number)):
            raise LabError(stuck[0], "nothing is averaged", f"correct it, then labctl restart {record.stack}")


@contextlib.contextmanager
def watched(session: Session, stack: str, explain: faults.Explain) -> Iterator[None]:
    """While a block waits for answers: whoever waits hears of an execution that does not come back."""
    remedy = f"After the edit: labctl restart {stack}"
    with stuck.told(lambda: stuck_models(session, stack, explain), session.listener, remedy):
        yield
