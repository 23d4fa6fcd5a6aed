"""Bring a stack up: plan → ports → weights → engine → repository → server → READY."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labctl import repository
from labctl.clock.clock import Clock
from labctl.listener import Listener
from labctl.manifest.schema import Lab
from labctl.plan import Plan
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Runtime
from labctl.runtimes.proc import Proc
from labctl.runtimes.record import Endpoints, Record, Replica, UpOptions
from labctl.stack import edits, faults, ports, replicas
from labctl.stack.down import sweep, take_down
from labctl.stack.prepare import check_machine, preparations
from labctl.stack.running import tail, whole_log
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack, Stack
from labctl.triton import secret as own_secret
from labkit.disk import atomic_write
from labkit.errors import LabError

TRIES = 3  # starts on ports that nobody had a moment before
FLAGS = {"client_shm": "--allow-client-shm", "replicas": "--replicas (labctl scale)"}  # those not named as their field


def up(session: Session, lab: Lab, stack: str, options: UpOptions, ephemeral: bool = False) -> RunningStack:
    """Bring one stack up and return when every model answers.

    Args:
        ephemeral: the stack must not outlive this process (``run``, ``bench``).

    Raises:
        LabError: with nothing left behind.
    """
    with session.lock(stack, "up"):
        sweep(session, stack)
        if running := session.find(stack):
            return _already(RunningStack.of(session, lab, *running, already=True), options)
        runtime = session.choose(options.runtime, options.choices.profile)
        if session.todo is None and runtime.leftovers(stack):  # its server died: what stood around it has its ports
            take_down(session, runtime, stack, force=True)
        endpoints = ports.chosen(options.ports, options.bind)
        wanted = Stack(session, lab, stack, runtime, options)
        steps = bring_up(wanted, endpoints, Proc.current() if ephemeral else None)
        if session.todo is None:
            ports.require(endpoints, options.bind, [record for _, record in session.running()])
        check_machine(session, wanted.plan, runtime)
        session.say_how_long(steps.prepare, options.runtime, wanted.plan.profile)
        session.carry_out([*steps.prepare, steps.render])
        record = _start_on_free_ports(wanted, steps)
        return RunningStack(session, lab, stack, runtime, record.asked, record)


def _start_on_free_ports(stack: Stack, steps: BringUp) -> Record:
    """Start the server; again on other ports where a program has taken one between our look and the server's.

    Raises:
        LabError: the start failed for another reason, ``TRIES`` times for this one, or a port that was asked for by
            its number is taken.
    """
    session, options = stack.session, stack.options
    for _ in range(TRIES - 1):
        try:
            return session.do(steps.start)
        except LabError as error:
            if not ports.lost(error):
                raise
        session.listener.note("another program took a port before the server listened on it: started again")
        endpoints = ports.claim(options.ports, options.bind, [record for _, record in session.running()])
        steps = bring_up(stack, endpoints, steps.record.owner)
    return session.do(steps.start)


@dataclass(frozen=True)
class BringUp:
    """The actions that bring one stack up, in their order."""

    prepare: Sequence[Action[str]]
    render: Action[str]
    start: Action[Record]
    record: Record


def bring_up(stack: Stack, endpoints: Endpoints, owner: Proc | None = None) -> BringUp:
    """What brings a stack up on its runtime; nothing is made yet.

    Raises:
        LabError: whatever can be known to fail.
    """
    plan, runtime, options = stack.plan, stack.runtime, stack.options

    def render(listener: Listener) -> str:
        # Planned again, now that the weights are here: the configuration may name their vocabulary's size.
        request = stack.planned_again().request
        rendered = repository.render(request)
        if spare := repository.spare(request) if request.spare else []:
            listener.note(repository.without_effect(spare))
        if left := repository.unknown(request) if request.lenient else []:
            listener.note(f"the image's templates ask for {', '.join(left)}, which labctl does not know: not set")
        return f"{len(rendered.models)} models, every config.pbtxt valid"

    prepare = preparations(plan, runtime, stack.session.workspace, options.fronted)
    policy = replicas.policy(plan, options.replicas, options.balance, options.expose)
    own_ports = bool(policy) or _needs_ports(runtime, options)
    servers = [Replica(i, place) for i, place in enumerate(ports.places(options.replicas or 1), 1) if own_ports]
    if policy == "client":
        endpoints = replicas.all_of(endpoints, servers)
    record = Record(
        stack=stack.name, lab=stack.lab.folder, runtime=runtime.name, profile=plan.profile, settings=plan.settings,
        models=plan.stack.models, endpoints=endpoints, tokenizer_dir=plan.tokenizer_dir, effective=plan.effective,
        owner=owner, balance=policy, servers=servers, options=settled(options, plan),
    )  # fmt: skip
    return BringUp(
        prepare,
        Action("model repository", render, files=plan.files(), expected=""),
        _start(stack, record),
        record,
    )


def _needs_ports(runtime: Runtime, options: UpOptions) -> bool:
    """Whether the server needs ports of its own because the guard is on those that were asked for.

    A container has an address of its own.
    """
    return options.expose and runtime.name == "local"


def _start(stack: Stack, record: Record) -> Action[Record]:
    """Start the server and wait until it serves; on any failure but Ctrl-C nothing of it is left."""
    session, runtime, plan, folder = stack.session, stack.runtime, stack.plan, stack.folder
    workspace, run_dir, log_file = session.workspace, folder.run_dir(), folder.log_file()
    count = f"{replicas.counted(len(record.servers))} of " if record.balance else ""
    title = f"{count}tritonserver with {', '.join(plan.stack.models)}"
    server_start = runtime.start(stack.launch(record))

    def do(listener: Listener) -> Record:
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        atomic_write(log_file, b"", mode=0o600)
        for path in folder.replica_logs:
            path.unlink()
        replicas.make_room(workspace, record, record.servers)
        own_secret.make(workspace, stack.name)
        listener.step(title)
        began = time.monotonic()
        try:
            server = server_start.do(listener)
            session.remember(server.record)
            replicas.await_ready(session, runtime, plan, server, record.servers, stack.options.patience)
            if record.balance:
                replicas.await_balancer(runtime, record)
        except BaseException as error:
            if isinstance(error, LabError):  # while its log is there
                error = faults.explained(error, faults.explainer(plan, runtime, lambda: whole_log(runtime, plan.name)))
                if edits.not_shipped(session, plan):
                    undo = f"labctl undo {stack.name} puts the shipped files back"
                    error.remedy = "; ".join(filter(None, (error.remedy, undo)))
            # Where `up` was interrupted, what is there stays, and the person is told.
            if record.owner or not isinstance(error, KeyboardInterrupt):
                take_down(session, runtime, stack.name, force=True)
            raise error
        listener.done(f"READY after {time.monotonic() - began:.1f} s", timed=False)
        return server.record

    files = [
        *server_start.files,
        str(log_file),
        f"{run_dir}/",
        *map(str, (folder.state_file, folder.secret)),
    ]
    return Action(title, do, server_start.commands, files, expected=record)


def death(session: Session, stack: str) -> LabError | None:
    """That a stack which was brought up is not there any more, how it ended, and its last words; None if it is."""
    record = session.remembered(stack)
    if record is None or session.find(stack):
        return None
    runtime = session.runtime(record.runtime)
    how = runtime.ended(stack) or "nobody saw how"
    remedy = f"labctl up {stack}; docs/operate/security.md says what one request can do to this Triton"
    return LabError(f"the server of {stack} died: {how}", "", remedy, details=tail(runtime, stack))


def _already(there: RunningStack, options: UpOptions) -> RunningStack:
    """A server is there: fine if it is ready and as wanted, a refusal otherwise."""
    session, runtime, record, stack = there.session, there.runtime, there.record, there.name
    plan = replace(there, options=options).plan
    differing = differences(plan, options, record)
    if differing:
        raise LabError(
            f"{stack} is already up with other settings",
            f"on the {runtime.name} runtime, profile {record.profile}",
            f"labctl down {stack}",
            details=differing,
        )
    folders = [there.folder.run_dir(record.folder(server.number)) for server in record.servers]
    if still := [name for folder in folders for name in Clock(folder, tuple(record.models)).paused]:
        raise LabError(
            f"{stack} is up, but its clock stands still", f"of {', '.join(still)}", f"labctl clock {stack} run"
        )
    try:
        replicas.await_ready(session, runtime, plan, replicas.There(runtime, record), record.servers, options.patience)
    except LabError as error:
        mine = faults.explained(error, faults.explainer(plan, runtime, lambda: whole_log(runtime, stack)))
        raise LabError(f"{stack} is up but not ready: {mine.what}", mine.why, f"labctl down {stack}") from error
    return there


def settled(options: UpOptions, plan: Plan) -> UpOptions:
    """The options with the release and the GPUs that the plan chose for them."""
    release = plan.release.name if plan.release else ""
    return replace(options, choices=replace(options.choices, release=release, gpus=tuple(plan.gpus)))


def differences(plan: Plan, options: UpOptions, record: Record) -> list[str]:
    """How a running stack differs from what is asked for now, one line for each option; [] where it does not.

    What a person leaves open is as it is: the runtime, the replicas and their balancer, and restarts. Ports and the
    time to wait are no reason to refuse a stack that runs.
    """
    runs, wanted = record.asked, settled(options, plan)
    settings = plan.stack_settings
    runs = replace(runs, choices=replace(runs.choices, set={key: runs.choices.set.get(key) for key in settings}))
    wanted = replace(
        wanted, choices=replace(wanted.choices, set=settings), ports=runs.ports, timeout=runs.timeout,
        runtime=runs.runtime if wanted.runtime == "auto" else wanted.runtime,
        supervise=wanted.supervise or runs.supervise,
    )  # fmt: skip
    if wanted.replicas is None and not wanted.balance:
        wanted = replace(wanted, replicas=runs.replicas, balance=runs.balance)
    else:
        policy = replicas.policy(plan, wanted.replicas, wanted.balance, wanted.expose)
        wanted = replace(wanted, replicas=wanted.replicas or 1, balance=policy)
    if runs == wanted:
        return []
    now, then = _by_name(runs), _by_name(wanted)
    return [
        f"{name}: it runs with {_in_words(now[name])}, you asked for {_in_words(then[name])}"
        for name in then
        if now[name] != then[name]
    ]


def _by_name(options: UpOptions) -> Mapping[str, Any]:
    """Every setting and every option, by its name on the command line."""
    every = {**vars(options.choices), **vars(options)}
    flags = {FLAGS.get(name, f"--{name}"): every[name] for name in every if name not in ("choices", "set")}
    return {**options.choices.set, **flags}


def _in_words(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in ("", None, ()) else value
