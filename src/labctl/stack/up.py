"""Bring a stack up: plan → what is left of it → ports → weights and engines → repository → server → READY."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial

from labctl import repository
from labctl.lab import Lab
from labctl.options import Options
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Proc, Record
from labctl.stack import edits, faults, replicas
from labctl.stack.build import check_machine, prepare_artifacts, refuse_unservable
from labctl.stack.down import take_down
from labctl.stack.ports import claim_endpoints, lost_port
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, option_differences, record_of
from labctl.triton import readiness
from labkit.disk import atomic_write
from labkit.errors import LabError

TRIES = 3  # starts at most, where another program takes a free port first


def up(session: Session, lab: Lab, stack: str, options: Options, ephemeral: bool = False) -> RunningStack:
    """Bring one stack up and return when every model answers.

    ``ephemeral``: the stack must not outlive this process (``run``, ``bench``). Raises LabError with nothing left
    behind.
    """
    with stack_lock(session.workspace, stack, "up"):
        running = RunningStack.find(session, stack)
        if running and not running.record.orphaned():
            return _already(replace(running, own=lab, already=True), options)
        runtime = session.choose(options.runtime, options.profile)
        wanted = PlannedStack(session, lab, stack, runtime, options)
        refuse_unservable(wanted.plan, runtime, session.workspace)
        check_machine(session, wanted.plan, runtime)
        kept = session.remembered(stack)
        if kept or running or runtime.leftovers(stack):  # its `run` was killed, or its server died
            left_on = running.runtime if running else session.runtime(kept.runtime) if kept else runtime
            take_down(session, left_on, stack, force=True)
        record = record_of(wanted, claim_endpoints(options.ports, session.running))
        record = replace(record, owner=Proc.current() if ephemeral else None)
        if prepare_artifacts(session, wanted.plan, runtime):
            wanted = wanted.with_options(options)  # planned again, with the vocabulary of the weights
        _render(wanted)
        tries = TRIES
        while True:
            tries -= 1
            try:
                return readiness.start_once_more(partial(_start, wanted, record), session.listener.note)
            except LabError as error:
                if not (tries and lost_port(error)):
                    raise
            session.listener.note("another program took a port before the server listened on it: started again")
            endpoints = claim_endpoints(options.ports, session.running)
            record = replace(record_of(wanted, endpoints), owner=record.owner)


def _render(stack: PlannedStack) -> None:
    """Render the stack's model repository."""
    listener = stack.session.listener
    listener.step("model repository")
    request = stack.plan.request
    models = repository.render_repository(request)
    if spare := repository.unused_parameters(request) if request.spare else []:
        listener.note(repository.without_effect(spare))
    if left := repository.unfilled_placeholders(request) if request.lenient else []:
        listener.note(f"the templates ask for {', '.join(left)}, which labctl does not know: not set")
    count = "1 model" if len(models) == 1 else f"{len(models)} models"
    listener.done(f"{count}, every config.pbtxt valid")


def _start(stack: PlannedStack, record: Record) -> RunningStack:
    """Start the server and wait until it serves. On any failure but Ctrl-C nothing of it is left."""
    session, runtime, plan = stack.session, stack.runtime, stack.plan
    count = f"{replicas.replicas_in_words(len(record.servers))} of " if record.balance else ""
    session.listener.step(f"{count}tritonserver with {', '.join(plan.served.models)}")
    _make_room(stack, record)
    began = time.monotonic()
    try:
        session.remember(record)  # before anything runs, so that the next command finds it
        exited = runtime.start(session.listener, plan, record)
        answered = replicas.await_ready(stack, record, record.servers, exited)
        if record.balance:
            replicas.await_balancer(session, record)
    except BaseException as error:
        if isinstance(error, LabError):  # before its log is removed
            error = _explained(stack, error)
        # After Ctrl-C what was started stays, unless the stack belongs to this process; the command line says so.
        if record.owner or not isinstance(error, KeyboardInterrupt):
            take_down(session, runtime, stack.name, force=True)
        raise error
    session.listener.done(f"READY after {time.monotonic() - began:.1f} s", timed=False)
    return replace(RunningStack.of(session, stack.lab, runtime, record), answered=answered)


def _make_room(stack: PlannedStack, record: Record) -> None:
    """Make the run folder, the logs and the secret of a server that is about to start; those of the last one go."""
    folder = stack.folder
    shutil.rmtree(folder.run_dir(), ignore_errors=True)
    folder.run_dir().mkdir(parents=True)
    atomic_write(folder.log_file(), b"", mode=0o600)
    for path in folder.replica_logs:
        path.unlink()
    replicas.make_room(stack.session.workspace, record, record.servers)
    folder.make_secret()


def _explained(stack: PlannedStack, error: LabError) -> LabError:
    """The error of a start in the words and the files of a person who edits the models."""
    error = faults.explain_error(error, faults.stack_explainer(stack))
    if edits.not_shipped(stack.session, stack.plan):
        error.remedy = "; ".join(filter(None, (error.remedy, "git restore FILE puts a shipped file back")))
    return error


def _already(running: RunningStack, options: Options) -> RunningStack:
    """Return the stack that is up, if it is ready and as wanted. Raises LabError otherwise."""
    runtime, record, stack = running.runtime, running.record, running.name
    wanted = running.with_options(options)
    if differing := option_differences(wanted):
        raise LabError(
            f"{stack} is already up with other settings",
            f"on the {runtime.name} runtime, profile {record.profile}",
            f"labctl down {stack}",
            details=differing,
            code="stack-up-otherwise",
        )
    if still := faults.paused_models(running.session, record):
        raise LabError(
            f"{stack} is up, but its clock stands still",
            f"of {', '.join(still)}",
            f"labctl clock {stack} run",
            code="clock-stopped",
        )
    try:
        answered = replicas.await_ready(wanted, record, record.servers, lambda: replicas.missing_servers(wanted))
    except LabError as error:
        explained = faults.explain_error(error, faults.stack_explainer(wanted))
        raise LabError(
            f"{stack} is up but not ready: {explained.what}",
            explained.why,
            f"labctl down {stack}",
            code="stack-not-ready",
        ) from error
    return replace(running, answered=answered)
