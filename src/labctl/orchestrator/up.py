"""Bring a stack up: plan → ports → weights → engine → repository → server → READY."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labctl import repository
from labctl import secret as own_secret
from labctl.errors import LabError
from labctl.listener import Listener
from labctl.manifest.schema import Lab
from labctl.orchestrator import edits, faults, ports, replicas
from labctl.orchestrator.clock import Clock
from labctl.orchestrator.down import sweep, take_down
from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.plan import Choices, Plan, make_plan
from labctl.orchestrator.prepare import check_machine, preparations
from labctl.orchestrator.running import tail, whole_log
from labctl.orchestrator.session import Session
from labctl.orchestrator.todo import Todo
from labctl.runtimes.actions import Action, carry_out
from labctl.runtimes.base import Endpoints, Launch, Record, Replica, Runtime
from labctl.runtimes.proc import Proc
from labctl.workspace import Workspace, atomic_write


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
    replicas: int | None = None
    balance: str = ""

    @property
    def fronted(self) -> bool:
        """Whether Envoy stands before the server."""
        return self.expose or bool(self.balance) or (self.replicas or 1) > 1

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
            listener.note(repository.without_effect(spare))
        return f"{len(rendered.models)} models, every config.pbtxt valid"

    plan = planned()
    prepare, asked = preparations(plan, runtime, workspace, options.fronted), _asked(plan, options)
    policy = replicas.policy(plan, options.replicas, options.balance, options.expose)
    own_ports = bool(policy) or _needs_ports(runtime, options)
    servers = [Replica(i, place) for i, place in enumerate(ports.places(options.replicas or 1), 1) if own_ports]
    if policy == "client":
        endpoints = replicas.all_of(endpoints, servers)
    record = Record(
        stack=stack, lab=lab.folder, runtime=runtime.name, profile=plan.profile, settings=plan.settings,
        models=plan.stack.models, endpoints=endpoints, tokenizer_dir=plan.tokenizer_dir, effective=plan.effective,
        owner=owner, balance=policy, servers=servers, restarts=options.supervise, **asked,
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
        server_args=plan.server_args, env=plan.server_env,
        shm_size=plan.stack.server.shm_size, exit_timeout=plan.stack.server.exit_timeout, image=plan.image,
        ranks=plan.ranks, launcher=plan.release.launcher if plan.release else "",
    )  # fmt: skip


def _start(session: Session, runtime: Runtime, plan: Plan, record: Record, options: UpOptions) -> Action[Record]:
    """Start the server and wait until it serves; on any failure but Ctrl-C nothing of it is left."""
    workspace, stack = session.workspace, plan.name
    run_dir, log_file = workspace.run_dir(stack), workspace.log_file(stack)
    count = f"{replicas.counted(len(record.servers))} of " if record.balance else ""
    title = f"{count}tritonserver with {', '.join(plan.stack.models)}"
    server_start = runtime.start(launch_of(workspace, plan, record))

    def do(listener: Listener) -> Record:
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        atomic_write(log_file, b"", mode=0o600)
        for path in workspace.replica_logs(stack):
            path.unlink()
        replicas.make_room(workspace, record, record.servers)
        own_secret.make(workspace, stack)
        listener.step(title)
        began = time.monotonic()
        try:
            server = server_start.do(listener)
            session.remember(server.record)
            replicas.await_ready(session, runtime, plan, server, record.servers, options.timeout)
            if record.balance:
                replicas.await_balancer(runtime, record)
        except BaseException as error:
            if isinstance(error, LabError):  # while its log is there
                error = faults.explained(error, faults.explainer(plan, runtime, lambda: whole_log(runtime, stack)))
                if edits.not_shipped(session, plan):
                    undo = f"labctl undo {stack} puts the shipped files back"
                    error.remedy = "; ".join(filter(None, (error.remedy, undo)))
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


def _already(session: Session, lab: Lab, stack: str, options: UpOptions, runtime: Runtime, record: Record) -> Up:
    """A server is there: fine if it is ready and as wanted, a refusal otherwise."""
    plan = make_plan(session.workspace, lab, stack, options.choices, runtime.server_path)
    asked = {**plan.stack_settings, "profile": plan.profile, **_asked(plan, options)}
    runs = {**record.settings, **{key: getattr(record, key) for key in ("profile", *_asked(plan, options))}}
    if options.runtime != "auto":
        asked["runtime"], runs["runtime"] = options.runtime, runtime.name
    if options.replicas is not None or options.balance:
        asked["balance"] = replicas.policy(plan, options.replicas, options.balance, options.expose)
        asked["replicas"] = options.replicas or 1
        runs |= {"balance": record.balance, "replicas": len(record.servers)}
    if options.supervise:
        asked["restarts"], runs["restarts"] = options.supervise, record.restarts
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
    folders = [session.workspace.run_dir(stack, record.folder(server.number)) for server in record.servers]
    if still := [name for folder in folders for name in Clock(folder, tuple(record.models)).paused]:
        raise LabError(
            f"{stack} is up, but its clock stands still", f"of {', '.join(still)}", f"labctl clock {stack} run"
        )
    try:
        replicas.await_ready(session, runtime, plan, replicas.There(runtime, record), record.servers, options.timeout)
    except LabError as error:
        mine = faults.explained(error, faults.explainer(plan, runtime, lambda: whole_log(runtime, stack)))
        raise LabError(f"{stack} is up but not ready: {mine.what}", mine.why, f"labctl down {stack}") from error
    return Up(runtime, record, already=True)


WORDS = {
    "balance": "--balance",
    "replicas": "--replicas (labctl scale)",
    "restarts": "--supervise",
    "bind": "address (--expose)",
    "release": "--release",
    "templates": "--templates",
}


def _said(value: object) -> object:
    return "none" if value in ("", None) else value
