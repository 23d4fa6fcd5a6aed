"""The servers of a run, one after the other, each for the time of its phases.

Where the manifest says ``share_server``, a phase goes on with the server of the phase before: its models get the new
settings, and only those whose files differ are loaded anew. That takes a second or two; a new server takes five. Where
requests are spread in another way, only the balancer is started anew. The clients of such phases share a process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from operator import attrgetter

from labctl.manifest.schema import Lab
from labctl.options import Options
from labctl.runtimes.record import Record
from labctl.runtimes.series import Series
from labctl.stack import edits, replicas
from labctl.stack.down import take_down
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack, Stack
from labctl.stack.up import prepare_artifacts, record_of, up

PLANNED = "server_args server_env image ranks devices stack.server.shm_size stack.server.exit_timeout stack.packages"
STARTED_WITH = attrgetter(*PLANNED.split(), "stack.models")  # what of a plan no server that is up can change


@contextmanager
def ephemeral_stack(
    session: Session, lab: Lab, stack: str, options: Options, keep: bool = False
) -> Iterator[RunningStack]:
    """A stack for the time of a block, taken down however the block ends (unless it was up before, or ``keep``)."""
    handle = up(session, lab, stack, options, ephemeral=not keep)
    try:
        yield handle
    finally:
        if not handle.already and not keep:
            # Nothing is in flight, and Triton takes seconds to unload models for nobody. On a GPU it may have them, for
            # what its engine holds there.
            force = handle.record.profile != "gpu" or sys.exc_info()[0] is not None
            take_down(session, handle.runtime, stack, force=force)


def as_it_runs(session: Session, stack: str, options: Options) -> Options:
    """The options with what a running stack has in the place of what was not asked for; those of one that is down stay.

    A measurement without ``--set`` is one of what runs.
    """
    found = session.find(stack)
    if not found or options.of_plan != Options().of_plan:
        return options
    record = found.record
    session.listener.note(f"{stack} is up: it is measured with the settings that it has (labctl status {stack} --json)")
    return replace(
        options,
        **record.asked.of_plan,
        expose=options.expose or record.exposed,
        client_shm=options.client_shm or record.options.client_shm,
    )


def goes_on(before: RunningStack, wanted: Stack, new: Record) -> bool:
    """Whether the servers of ``before`` can serve what is wanted with no more than other files of their models.

    Not on a TensorRT-LLM release: what one engine leaves on a GPU is not for the next one to meet. Servers behind Envoy
    go on only with the same files; of those, only the balancer may differ.
    """
    old, plan = before.record, wanted.plan
    if not (plan.lab.run and plan.lab.run.share_server) or plan.release:
        return False
    if (old.front, old.bind, len(old.servers)) != (new.front, new.bind, len(new.servers)):
        return False
    if old.front and plan.effective != before.plan.effective:
        return False
    return STARTED_WITH(before.plan) == STARTED_WITH(plan)


class Servers(ExitStack):
    """Leaving it takes down what is up."""

    def __init__(self, session: Session, lab: Lab) -> None:
        super().__init__()
        self._session, self._lab = session, lab
        self._now: RunningStack | None = None
        self.clients: Series | None = None  # of the server that is up, where phases share them

    def next(self, stack: str, options: Options, keep: bool = False) -> RunningStack:
        """The stack with these options, ready; the server before it goes on, or is taken down.

        ``keep``: it stays up when all is over; a server of its own, which carries its own settings. Raises
        LabError: it cannot be brought up, or a model cannot be loaded.
        """
        now = self._now
        if now and not keep and not now.already and (turned := self._reuse(now, stack, options)) is not None:
            return turned
        self._now = self.clients = None
        self.close()
        fresh = self.enter_context(ephemeral_stack(self._session, self._lab, stack, options, keep))
        self._now = fresh
        if self._lab.run and self._lab.run.share_server:
            self.clients = self.enter_context(fresh.runtime.clients(stack))
            self.clients.start(self._session.listener)
        return fresh

    def _reuse(self, before: RunningStack, stack: str, options: Options) -> RunningStack | None:
        """The server that is there with the new settings; None where it takes another."""
        session, runtime = self._session, before.runtime
        # What is there now: a client may have had replicas killed and started again.
        found = before if session.dry else session.find(before.name)
        if not found or stack != before.name or (not session.dry and replicas.missing_replicas(found)):
            return None
        old = found.record
        before = replace(before, record=old)
        wanted = before.with_options(options)
        new = record_of(wanted, old.endpoints, old.owner)
        if not goes_on(before, wanted, new):
            return None
        with wanted.lock("reload"):
            if session.dry or not wanted.plan.ready(session.workspace):
                prepare_artifacts(session, wanted.plan, runtime)
            wanted = wanted.with_options(options)  # now that the weights are here, as in up
            if not session.dry:
                edits.load_differing(wanted)
            record = wanted.as_planned()
            if old.balance != new.balance:
                record = replicas.spread_by(session, runtime, record, new.balance, options.ports)
            session.remember(record)
        self._now = RunningStack.of(session, self._lab, runtime, record)
        return self._now
