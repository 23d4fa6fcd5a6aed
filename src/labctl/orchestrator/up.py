"""Bring a stack up: plan → ports → weights → engine → repository → server → READY; and take it down again."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from labctl import repository
from labctl.errors import LabError
from labctl.manifest.schema import Lab
from labctl.orchestrator import ports
from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.plan import Choices, Plan, make_plan
from labctl.orchestrator.prepare import prepare
from labctl.orchestrator.session import Session
from labctl.readiness import LOG_TAIL, wait_ready
from labctl.runtimes.base import Launch, Proc, Record, Runtime
from labctl.workspace import Workspace


@dataclass(frozen=True)
class UpOptions:
    """The command line's wishes for one ``up``."""

    choices: Choices = field(default_factory=Choices)
    runtime: str = "auto"
    ports: str = "8000,8001,8002"
    timeout: float = 180.0
    expose: bool = False


@dataclass(frozen=True)
class Up:
    """A stack that is ready. ``already`` says that it was so before."""

    runtime: Runtime
    record: Record
    already: bool = False


def up(session: Session, lab: Lab, stack: str, options: UpOptions, ephemeral: bool = False) -> Up:
    """Bring one stack up and return when every model answers.

    Args:
        ephemeral: the stack must not outlive this process (``run``, ``bench``).

    Raises:
        LabError: with nothing left behind.
    """
    with stack_lock(session.workspace, stack, "up"):
        sweep(session, stack)
        if found := session.find(stack):
            return _already(session, lab, stack, options, *found)
        runtime = session.choose(options.runtime, options.choices.profile)
        plan = make_plan(session.workspace, lab, stack, options.choices, runtime.server_path)
        bind = "0.0.0.0" if options.expose else "127.0.0.1"
        endpoints = ports.claim(options.ports, bind, [record for _, record in session.running()])
        prepare(plan, runtime, session.listener, session.workspace)
        # Planned again, now that the weights are here: the configuration may name their vocabulary's size.
        plan = make_plan(session.workspace, lab, stack, options.choices, runtime.server_path)
        session.listener.step("model repository")
        rendered = repository.render(plan.request)
        session.listener.done(f"{len(rendered.models)} models, every config.pbtxt valid")
        record = Record(
            stack=stack, lab=lab.folder, runtime=runtime.name, profile=plan.profile, settings=plan.settings,
            models=plan.stack.models, endpoints=endpoints, tokenizer_dir=plan.tokenizer_dir,
            effective=plan.effective, owner=Proc.current() if ephemeral else None,
        )  # fmt: skip
        return Up(runtime, start(session, runtime, plan, record, options.timeout, bind))


def launch_of(workspace: Workspace, plan: Plan, record: Record, bind: str) -> Launch:
    """All that the runtime is told of a server."""
    return Launch(
        record=record, repository=workspace.repository_dir(plan.name), run_dir=workspace.run_dir(plan.name),
        log_file=workspace.log_file(plan.name), server_args=plan.server_args, env=plan.server_env, bind=bind,
        shm_size=plan.stack.server.shm_size, exit_timeout=plan.stack.server.exit_timeout, image=plan.image,
        ranks=plan.ranks, launcher=plan.release.launcher if plan.release else "",
    )  # fmt: skip


def start(session: Session, runtime: Runtime, plan: Plan, record: Record, timeout: float, bind: str) -> Record:
    """Start the server and wait until it serves; on any failure but Ctrl-C nothing of it is left."""
    workspace, listener, stack = session.workspace, session.listener, plan.name
    run_dir = workspace.run_dir(stack)
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    log = workspace.log_file(stack)
    log.write_bytes(b"")
    launch = launch_of(workspace, plan, record, bind)
    listener.step(f"tritonserver with {', '.join(plan.stack.models)}")
    began = time.monotonic()
    try:
        server = runtime.start(launch, listener)
        session.remember(server.record)
        wait_ready(
            record.endpoints.http, plan.stack.models, plan.stack.probes, exited=server.exited,
            tail=lambda: tail(runtime, stack), log=lambda: whole_log(runtime, stack), timeout=timeout,
            progress=listener.progress,
        )  # fmt: skip
    except KeyboardInterrupt:
        if record.owner is None:  # `up` was interrupted: what is there stays, and the person is told
            raise
        take_down(session, runtime, stack, force=True)
        raise
    except BaseException:
        take_down(session, runtime, stack, force=True)
        raise
    listener.done(f"READY after {time.monotonic() - began:.1f} s")
    return server.record


def whole_log(runtime: Runtime, stack: str) -> list[str]:
    """The server's log, [] where there is none."""
    with contextlib.suppress(LabError, OSError):
        return list(runtime.logs(stack))
    return []


def tail(runtime: Runtime, stack: str, lines: int = LOG_TAIL) -> list[str]:
    """The last lines of the server's log: the errors, where there are any."""
    every = whole_log(runtime, stack)
    errors = [line for line in every if re.match(r"E\d{4} ", line) or "error" in line.lower()]  # E and month and day
    return (errors or every)[-lines:]


def _already(session: Session, lab: Lab, stack: str, options: UpOptions, runtime: Runtime, record: Record) -> Up:
    """A server is there: fine if it is ready and as wanted, a refusal otherwise."""
    plan = make_plan(session.workspace, lab, stack, options.choices, runtime.server_path)
    same = {key: record.settings.get(key) for key in plan.stack_settings} == plan.stack_settings
    if not same or record.profile != plan.profile or options.runtime not in ("auto", runtime.name):
        differing = [
            f"{key}: it runs with {record.settings.get(key)}, asked for {value}"
            for key, value in plan.stack_settings.items()
            if record.settings.get(key) != value
        ]
        raise LabError(
            f"{stack} is already up with other settings",
            f"on the {runtime.name} runtime, profile {record.profile}",
            f"labctl down {stack}",
            details=differing,
        )
    try:
        wait_ready(
            record.endpoints.http, plan.stack.models, plan.stack.probes,
            exited=lambda: None if runtime.find(stack) else "it is gone",
            tail=lambda: tail(runtime, stack), timeout=options.timeout, progress=session.listener.progress,
        )  # fmt: skip
    except LabError as error:
        raise LabError(f"{stack} is up but not ready: {error.what}", error.why, f"labctl down {stack}") from error
    return Up(runtime, record, already=True)


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
    """Forceful means bounded: it is quicker to end it than to be interrupted and leave something behind."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _take_down(session: Session, runtime: Runtime, stack: str, force: bool) -> None:
    runtime.stop(stack, session.listener, force)
    for _ in _until(5.0):
        if not (left := runtime.leftovers(stack)):
            break
    else:
        raise LabError(f"something of {stack} is still there", "", f"labctl down {stack}", details=left)
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
