"""The servers of a run, one after the other, each for the time of its phases.

Where the manifest says ``share_server``, a phase goes on with the server of the phase before: its models get the new
settings, and only those whose files differ are loaded anew. That takes a second or two; a new server takes five. Where
requests are spread in another way, only the balancer is started anew. The clients of such phases share a process.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from labctl.manifest.schema import Lab
from labctl.orchestrator import edits, replicas
from labctl.orchestrator.down import take_down
from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.plan import Plan, make_plan
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import Up, UpOptions, bring_up, launch_of, up
from labctl.runtimes.actions import carry_out
from labctl.runtimes.base import Record
from labctl.runtimes.clients import Series


@contextmanager
def ephemeral(session: Session, lab: Lab, stack: str, options: UpOptions, keep: bool = False) -> Any:
    """A stack for the time of a block, taken down however the block ends (unless it was up before, or ``keep``)."""
    handle = up(session, lab, stack, options, ephemeral=not keep)
    try:
        yield handle
    finally:
        if not handle.already and not keep:
            force = ends_at_once(handle.record.profile) or sys.exc_info()[0] is not None
            take_down(session, handle.runtime, stack, force=force)


def ends_at_once(profile: str) -> bool:
    """Whether a stack whose clients have ended is killed: nothing is in flight any more.

    Triton takes seconds to unload models for nobody. On a GPU it may have them, for what its engine holds there.
    """
    return profile != "gpu"


def shared(lab: Lab) -> bool:
    """Whether phases that follow each other share what they can."""
    return lab.run is not None and lab.run.share_server


def goes_on(session: Session, before: Plan, old: Record, plan: Plan, new: Record) -> bool:
    """Whether the servers of ``before`` can serve ``plan`` with no more than other files of their models.

    Not on a TensorRT-LLM release: what one engine leaves on a GPU is not for the next one to meet. Replicas, or a
    server behind the guard, go on only with the same files; of those, only the balancer may differ.
    """
    if not shared(plan.lab) or plan.name != before.name or plan.release:
        return False
    if (old.front, old.bind, len(old.servers)) != (new.front, new.bind, len(new.servers)):
        return False
    if old.front and plan.effective != before.effective:
        return False
    launches = [launch_of(session.workspace, each, old) for each in (before, plan)]
    return launches[0] == launches[1] and before.stack.models == plan.stack.models


class Servers:
    """Use as a context manager: leaving it takes down what is up."""

    def __init__(self, session: Session, lab: Lab) -> None:
        self._session = session
        self._lab = lab
        self._open = ExitStack()
        self._now: tuple[Up, Plan] | None = None
        self.clients: Series | None = None  # of the server that is up, where phases share them

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def next(self, stack: str, options: UpOptions, keep: bool = False) -> Up:
        """The stack with these options, ready; the server before it goes on, or is taken down.

        Args:
            keep: it stays up when all is over; a server of its own, which carries its own settings.

        Raises:
            LabError: it cannot be brought up, or a model cannot be loaded.
        """
        if self._now and not keep and not self._now[0].already:
            handle, before = self._now
            if (turned := self._turned(handle, before, stack, options)) is not None:
                return turned
        self._now = self.clients = None
        self._open.close()
        fresh: Up = self._open.enter_context(ephemeral(self._session, self._lab, stack, options, keep))
        plan = make_plan(self._session.workspace, self._lab, stack, options.choices, fresh.runtime.server_path)
        self._now = fresh, plan
        if shared(self._lab):
            self.clients = self._open.enter_context(fresh.runtime.clients(stack))
            self.clients.start().do(self._session.listener)
        return fresh

    def _turned(self, handle: Up, before: Plan, stack: str, options: UpOptions) -> Up | None:
        """The server that is there with the new settings; None where it takes another."""
        session, runtime = self._session, handle.runtime
        # What is there now: a client may have had replicas killed and started again.
        found = session.find(handle.record.stack)
        if not found or replicas.missing(*found):
            return None
        old = found[1]
        steps = bring_up(session, self._lab, stack, options, runtime, old.endpoints, old.owner)
        if not goes_on(session, before, old, steps.plan, steps.record):
            return None
        with stack_lock(session.workspace, stack, "reload"):
            if not all(step.ready() for step in steps.plan.steps):
                carry_out(steps.prepare, session.listener)
            # Planned again, now that the weights are here: see bring_up.
            plan = make_plan(session.workspace, self._lab, stack, options.choices, runtime.server_path)
            edits.load_differing(session, plan, runtime, old)
            record = replace(old, settings=plan.settings, effective=plan.effective, tokenizer_dir=plan.tokenizer_dir)
            if old.balance != steps.record.balance:
                record = replicas.spread_by(session, runtime, record, steps.record.balance, options.ports)
            session.remember(record)
        turned = Up(runtime, record)
        self._now = turned, plan
        return turned
