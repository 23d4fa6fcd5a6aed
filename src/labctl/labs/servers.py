"""The servers of a run, one after the other, each for the time of its block.

With a lab's ``share_server``, a block keeps the server of the block before: its models get the new settings, and only
models whose files differ are loaded again. That takes a second or two; a new server takes five. If requests are
spread in another way, only the balancer is started again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Self

from labctl.lab import Lab
from labctl.options import Options
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Record
from labctl.stack import edits, replicas
from labctl.stack.build import prepare_artifacts
from labctl.stack.down import take_down
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, record_of
from labctl.stack.up import up

STARTED_WITH = attrgetter(  # the parts of a plan that a running server cannot change
    "server_args", "server_env", "image", "gpu", "served.exit_timeout", "served.packages", "served.models"
)


@contextmanager
def ephemeral_stack(session: Session, lab: Lab, stack: str, options: Options) -> Iterator[RunningStack]:
    """A stack for the time of a block, taken down however the block ends, unless it was up before."""
    handle = up(session, lab, stack, options, ephemeral=True)
    try:
        yield handle
    finally:
        end_server(session, handle, force=sys.exc_info()[0] is not None)


def end_server(session: Session, handle: RunningStack, force: bool) -> None:
    """Take down a stack that was brought up for a measurement; one that was up before stays."""
    if not handle.already:
        # Nothing is in flight, and Triton would take seconds to unload models that nothing uses. On a GPU it gets
        # them, because its engine must release memory there.
        take_down(session, handle.runtime, handle.name, force=force or handle.record.profile != "gpu")


def as_it_runs(session: Session, stack: str, options: Options) -> Options:
    """The options of a measurement: without ``--set``, a running stack is measured with the settings that it has."""
    found = RunningStack.find(session, stack)
    if not found or options.of_plan != Options().of_plan:
        return options
    record = found.record
    session.listener.note(f"{stack} is up: it is measured with the settings that it has (labctl status {stack} --json)")
    return replace(options, **record.asked.of_plan, client_shm=options.client_shm or record.options.client_shm)


def goes_on(before: RunningStack, wanted: PlannedStack, new: Record) -> bool:
    """Whether the servers of ``before`` can serve ``wanted`` with no more than other files of their models.

    Never with TensorRT-LLM: an engine must not meet what another one left on the GPU. Servers behind Envoy go
    on only with the same files; only their balancer may differ.
    """
    old, plan = before.record, wanted.plan
    if not plan.lab.share_server or plan.trtllm:
        return False
    if (bool(old.balance), len(old.servers)) != (bool(new.balance), len(new.servers)):
        return False
    if old.balance and plan.effective != before.plan.effective:
        return False
    return STARTED_WITH(before.plan) == STARTED_WITH(plan)


class Servers:
    """The running server of a run; leaving the block takes it down.

    Args:
        keep: the last server stays up.
    """

    def __init__(self, session: Session, lab: Lab, keep: bool) -> None:
        self._session, self._lab, self._keep = session, lab, keep
        self._now: RunningStack | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if not self._keep or any(raised):
            self._take_down(force=any(raised))

    def next(self, stack: str, options: Options) -> RunningStack:
        """Return the stack with these options, ready; the server before it goes on, or is taken down.

        Raises LabError: it cannot be brought up, or a model cannot be loaded.
        """
        now = self._now
        if now and not now.already and (reused := self._reuse(now, stack, options)) is not None:
            return reused
        self._take_down()
        self._now = up(self._session, self._lab, stack, options, ephemeral=not self._keep)
        return self._now

    def _take_down(self, force: bool = False) -> None:
        if self._now:
            end_server(self._session, self._now, force)
        self._now = None

    def _reuse(self, before: RunningStack, stack: str, options: Options) -> RunningStack | None:
        """The present server with the new settings; None if another one is needed."""
        session, runtime = self._session, before.runtime
        # The record is read again: a client may have had replicas killed and started.
        now = RunningStack.find(session, before.name)
        if not now or stack != before.name or replicas.missing_replicas(now):
            return None
        old = now.record
        before = replace(before, record=old)
        wanted = before.with_options(options)
        new = record_of(wanted, old.endpoints)
        if not goes_on(before, wanted, new):
            return None
        with stack_lock(session.workspace, stack, "reload"):
            if not wanted.plan.ready(session.workspace) and prepare_artifacts(session, wanted.plan, runtime):
                wanted = wanted.with_options(options)  # planned again, as in up
            edits.load_differing(wanted)
            record = wanted.as_planned()
            if old.balance != new.balance:
                record = replicas.change_balance(session, record, new.balance, options.ports)
            session.remember(record)
        self._now = RunningStack.of(session, self._lab, runtime, record)
        return self._now
