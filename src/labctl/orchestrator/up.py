"""Bring a stack up: plan → ports → weights → engine → repository → server → READY."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labctl import repository
from labctl import secret as own_secret
from labctl.errors import LabError
from labctl.listener import Listener
from labctl.manifest.schema import Lab
from labctl.orchestrator import faults, ports, stuck
from labctl.orchestrator.clock import Clock
from labctl.orchestrator.down import sweep, take_down
from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.plan import Choices, Plan, make_plan
from labctl.orchestrator.prepare import check_machine, preparations
from labctl.orchestrator.running import whole_log
from labctl.orchestrator.session import Session
from labctl.orchestrator.todo import Todo
from labctl.readiness import LOG_TAIL, wait_ready
from labctl.runtimes.actions import Action, carry_out
from labctl.runtimes.base import Endpoints, Launch, Proc, Record, Runtime
from labctl.workspace import Workspace, atomic_write

GPU_DEVICE = Path("/dev/nvidiactl")
NO_GPU = re.compile(r"NVML|CudaDriverHelper|pinned system memory|CUDA memory pool|DCGM|no CUDA-capable device")


@dataclass(frozen=True)
class UpOptions:
    """The command line's choices for one ``up``."""

    choices: Choices = field(default_factory=Choices)
    runtime: str = "auto"
    ports: str = "8000,8001,8002"
    timeout: float = 180.0
    expose: bool = False
    client_shm: bool = False
    supervise: int = 0

    @property
    def bind(self) -> str:
        """The address that the ports are published on."""
        return "0.0.0.0" if self.expose else "127.0.0.1"


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
        if running := session.find(stack):
            return _already(session, lab, stack, options, *running)
        runtime = session.choose(options.runtime, options.choices.profile)
        if runtime.leftovers(stack):  # its server died: what stood around it has its ports
            take_down(session, runtime, stack, force=True)
        endpoints = ports.claim(options.ports, options.bind, [record for _, record in session.running()])
        steps = bring_up(session, lab, stack, options, runtime, endpoints, Proc.current() if ephemeral else None)
        check_machine(steps.plan, runtime, session.listener, session.workspace)
        session.say_how_long(steps.prepare, options.runtime, steps.plan.profile)
        carry_out([*steps.prepare, steps.render], session.listener)
        return Up(runtime, steps.start.do(session.listener))


@dataclass(frozen=True)
class BringUp:
    """The actions that bring one stack up, in their order."""

    plan: Plan
    prepare: Sequence[Action[str]]
    render: Action[str]
    start: Action[Record]
    record: Record


def dry_up(session: Session, lab: Lab, stack: str, options: UpOptions) -> Todo:
    """What :func:`up` would do. Raises LabError for what it would refuse before it makes anything."""
    runtime = session.likely(options.runtime, options.choices.profile)
    steps = dry_steps(session, lab, stack, options, runtime)
    actions = [*steps.prepare, steps.render, steps.start]
    return Todo(runtime.name, options.choices.profile, list(steps.plan.notices), actions)


def dry_steps(session: Session, lab: Lab, stack: str, options: UpOptions, runtime: Runtime) -> BringUp:
    """:func:`bring_up` with the ports that were asked for, whoever has them now."""
    return bring_up(session, lab, stack, options, runtime, ports.chosen(options.ports, options.bind))


def bring_up(
    session: Session, lab: Lab, stack: str, options: UpOptions, runtime: Runtime, endpoints: Endpoints,
    owner: Proc | None = None,
) -> BringUp:  # fmt: skip
    """What brings a stack up on that runtime; nothing is made yet.

    Raises:
        LabError: whatever can be known to fail.
    """
    workspace, choices = session.workspace, options.choices

    def planned() -> Plan:
        return make_plan(workspace, lab, stack, choices, runtime.server_path)

    def render(listener: Listener) -> str:
        # Planned again, now that the weights are here: the configuration may name their vocabulary's size.
        request = planned().request
        rendered = repository.render(request)
        if spare := repository.spare(request) if request.spare else []:
            listener.note(f"no template uses {', '.join(spare)} any more: these settings have no effect")
        return f"{len(rendered.models)} models, every config.pbtxt valid"

    plan = planned()
    prepare, asked = preparations(plan, runtime, workspace, options.expose), _asked(plan, options)
    record = Record(
        stack=stack, lab=lab.folder, runtime=runtime.name, profile=plan.profile, settings=plan.settings,
        models=plan.stack.models, endpoints=endpoints, tokenizer_dir=plan.tokenizer_dir, effective=plan.effective,
        owner=owner, behind=ports.chosen("auto", "127.0.0.1") if _needs_ports(runtime, options) else None, **asked,
    )  # fmt: skip
    return BringUp(
        plan,
        prepare,
        Action("model repository", render, files=plan.files()),
        _start(session, runtime, plan, record, options),
        record,
    )


def _needs_ports(runtime: Runtime, options: UpOptions) -> bool:
    """Whether the server needs ports of its own because the guard is on those that were asked for.

    A container has an address of its own.
    """
    return options.expose and runtime.name == "local"


def _asked(plan: Plan, options: UpOptions) -> dict[str, Any]:
    """What was asked beside the settings, as the record keeps it."""
    templates = options.choices.templates
    return {
        "bind": options.bind,
        "client_shm": options.client_shm,
        "release": plan.release.name if plan.release else "",
        "templates": str(templates) if templates else "",
    }


def launch_of(workspace: Workspace, plan: Plan, record: Record) -> Launch:
    """All that the runtime is told of a server."""
    return Launch(
        record=record, repository=workspace.repository_dir(plan.name), run_dir=workspace.run_dir(plan.name),
        log_file=workspace.log_file(plan.name), server_args=plan.server_args, env=plan.server_env,
        shm_size=plan.stack.server.shm_size, exit_timeout=plan.stack.server.exit_timeout, image=plan.image,
        ranks=plan.ranks, launcher=plan.release.launcher if plan.release else "",
    )  # fmt: skip


def _start(session: Session, runtime: Runtime, plan: Plan, record: Record, options: UpOptions) -> Action[Record]:
    """Start the server and wait until it serves; on any failure but Ctrl-C nothing of it is left."""
    workspace, stack = session.workspace, plan.name
    run_dir, log_file = workspace.run_dir(stack), workspace.log_file(stack)
    title = f"tritonserver with {', '.join(plan.stack.models)}"

    def log() -> list[str]:
        return whole_log(runtime, stack)

    server_start = runtime.start(replace(launch_of(workspace, plan, record), restarts=options.supervise))

    def do(listener: Listener) -> Record:
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        atomic_write(log_file, b"", mode=0o600)
        secret = own_secret.make(workspace, stack)
        listener.step(title)
        began = time.monotonic()
        try:
            server = server_start.do(listener)
            session.remember(server.record)
            wait_ready(
                record.endpoints.http, plan.stack.models, plan.stack.probes, exited=server.exited,
                tail=lambda: tail(runtime, stack), log=log, stuck=stuck.looker(run_dir), timeout=options.timeout,
                progress=listener.progress, secret=secret,
            )  # fmt: skip
            server.serves()
        except BaseException as error:
            if isinstance(error, LabError):  # while its log is there
                error = faults.explained(error, faults.explainer(plan, runtime, log))
            # Where `up` was interrupted, what is there stays, and the person is told.
            if record.owner or not isinstance(error, KeyboardInterrupt):
                take_down(session, runtime, stack, force=True)
            raise error
        listener.done(f"READY after {time.monotonic() - began:.1f} s", timed=False)
        return server.record

    files = [
        *server_start.files,
        str(log_file),
        f"{run_dir}/",
        *map(str, (session.state_file(stack), own_secret.path(workspace, stack))),
    ]
    return Action(title, do, server_start.commands, files)


def death(session: Session, stack: str) -> LabError | None:
    """That a stack which was brought up is not there any more, how it ended, and its last words; None if it is."""
    record = session.remembered(stack)
    if record is None or session.find(stack):
        return None
    runtime = session.runtime(record.runtime)
    how = runtime.ended(stack) or "nobody saw how"
    remedy = f"labctl up {stack}; docs/security.md says what one request can do to this Triton"
    return LabError(f"the server of {stack} died: {how}", "", remedy, details=tail(runtime, stack))


def tail(runtime: Runtime, stack: str, lines: int = LOG_TAIL) -> list[str]:
    """The last lines of the server's log: the errors, where there are any.

    What Triton says of a missing GPU is no news on a machine that has none.
    """
    has_gpu = GPU_DEVICE.exists()
    every = [line for line in whole_log(runtime, stack) if has_gpu or not NO_GPU.search(line)]
    errors = [line for line in every if re.match(r"E\d{4} ", line) or "error" in line.lower()]  # E and month and day
    return (errors or every)[-lines:]


def _already(session: Session, lab: Lab, stack: str, options: UpOptions, runtime: Runtime, record: Record) -> Up:
    """A server is there: fine if it is ready and as wanted, a refusal otherwise."""
    plan = make_plan(session.workspace, lab, stack, options.choices, runtime.server_path)
    asked = {**plan.stack_settings, "profile": plan.profile, **_asked(plan, options)}
    runs = {**record.settings, **{key: getattr(record, key) for key in ("profile", *_asked(plan, options))}}
    if options.runtime != "auto":
        asked["runtime"], runs["runtime"] = options.runtime, runtime.name
    differing = [
        f"{WORDS.get(key, key)}: it runs with {_said(runs.get(key))}, you asked for {_said(value)}"
        for key, value in asked.items()
        if runs.get(key) != value
    ]
    if differing:
        raise LabError(
            f"{stack} is already up with other settings",
            f"on the {runtime.name} runtime, profile {record.profile}",
            f"labctl down {stack}",
            details=differing,
        )
    if still := Clock(session.workspace.run_dir(stack), tuple(record.models)).paused:
        raise LabError(
            f"{stack} is up, but its clock stands still", f"of {', '.join(still)}", f"labctl clock {stack} run"
        )
    run_dir = session.workspace.run_dir(stack)
    try:
        wait_ready(
            record.endpoints.http, plan.stack.models, plan.stack.probes, stuck=stuck.looker(run_dir),
            exited=lambda: runtime.guard_ended(record) or (None if runtime.find(stack) else "it is gone"),
            tail=lambda: tail(runtime, stack), timeout=options.timeout, progress=session.listener.progress,
            secret=own_secret.read(session.workspace, stack),
        )  # fmt: skip
    except LabError as error:
        mine = faults.explained(error, faults.explainer(plan, runtime, lambda: whole_log(runtime, stack)))
        raise LabError(f"{stack} is up but not ready: {mine.what}", mine.why, f"labctl down {stack}") from error
    return Up(runtime, record, already=True)


WORDS = {"bind": "address (--expose)", "release": "--release", "templates": "--templates"}


def _said(value: object) -> object:
    return "none" if value in ("", None) else value
