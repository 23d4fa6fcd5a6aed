"""A stack that runs: the plan that it follows today, its log, and its faults in the words of who edits its models."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from labctl.errors import LabError
from labctl.manifest.schema import Lab
from labctl.orchestrator import faults, stuck
from labctl.orchestrator.plan import Choices, Plan, make_plan
from labctl.orchestrator.session import Session
from labctl.readiness import LOG_TAIL
from labctl.runtimes.base import Record, Runtime

GPU_DEVICE = Path("/dev/nvidiactl")
NO_GPU = re.compile(r"NVML|CudaDriverHelper|pinned system memory|CUDA memory pool|DCGM|no CUDA-capable device")


def plan_of(session: Session, lab: Lab, runtime: Runtime, record: Record) -> Plan:
    """The plan of a stack that runs, with today's templates."""
    templates = Path(record.templates) if record.templates else None
    choices = Choices(record.profile, dict(record.settings), record.release, templates)
    return make_plan(session.workspace, lab, record.stack, choices, runtime.server_path)


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


def explainer(session: Session, lab: Lab, runtime: Runtime, record: Record,
              names: Mapping[str, str] | None = None) -> faults.Explain:  # fmt: skip
    """What tells an error of the stack in a person's files; it changes nothing where today's templates make no plan."""
    try:
        plan = plan_of(session, lab, runtime, record)
    except LabError:
        return lambda text: text
    return faults.explainer(plan, runtime, lambda: whole_log(runtime, record.stack), names)


def in_your_files(session: Session, lab: Lab, runtime: Runtime, record: Record,
                  names: Mapping[str, str] | None = None) -> faults.Explain:  # fmt: skip
    """What puts a person's files in the place of the served copies, and does no more."""
    try:
        return faults.in_your_files(plan_of(session, lab, runtime, record), runtime, names)
    except LabError:
        return lambda text: text


def stuck_models(session: Session, stack: str, explain: faults.Explain, number: int = 0) -> list[str]:
    """What the stack's models, or that replica's, say of executions that do not come back."""
    return [explain(sentence) for sentence in stuck.stuck(session.workspace.run_dir(stack, number))]


@contextlib.contextmanager
def watched(session: Session, stack: str, explain: faults.Explain) -> Iterator[None]:
    """While a block waits for answers: whoever waits hears of an execution that does not come back."""
    remedy = f"After the edit: labctl restart {stack}"
    with stuck.told(lambda: stuck_models(session, stack, explain), session.listener, remedy):
        yield
