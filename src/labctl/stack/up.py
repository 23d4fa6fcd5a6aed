"""Bring a stack up: plan → ports → weights → engine → repository → server → READY."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labbuild.protocol import Builder
from labbuild.tensorrt_llm import check_target, commands
from labctl import repository
from labctl.artifacts.engines import Build
from labctl.doctor.gpu import gpu_checks
from labctl.listener import Listener
from labctl.manifest.schema import Lab
from labctl.plan import Plan, Step
from labctl.runtimes.base import Runtime
from labctl.runtimes.images import gpu_target
from labctl.runtimes.layers import layer
from labctl.runtimes.local import NEEDS_IMAGE
from labctl.runtimes.processes import Action
from labctl.runtimes.record import Endpoints, Proc, Record, Replica, UpOptions
from labctl.stack import edits, faults, replicas
from labctl.stack.down import sweep, take_down
from labctl.stack.ports import claim_endpoints, free_endpoints, lost_port, require_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import (
    RunningStack,
    Stack,
    balancing_policy,
    differences,
    named_endpoints,
    settle_options,
    with_servers,
)
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

TRIES = 3  # starts on ports that nobody had a moment before


def up(session: Session, lab: Lab, stack: str, options: UpOptions, ephemeral: bool = False) -> RunningStack:
    """Bring one stack up and return when every model answers.

    ``ephemeral``: the stack must not outlive this process (``run``, ``bench``). Raises LabError with nothing left
    behind.
    """
    with session.lock(stack, "up"):
        if session.todo is None:
            sweep(session, stack)
        if running := session.find(stack):
            return _already(RunningStack.of(session, lab, *running, already=True), options)
        runtime = session.choose(options.runtime, options.choices.profile)
        if session.todo is None and runtime.leftovers(stack):  # its server died: what stood around it has its ports
            take_down(session, runtime, stack, force=True)
        endpoints = named_endpoints(options.ports, options.bind) or free_endpoints(1, options.bind)[0]
        wanted = Stack(session, lab, stack, runtime, options)
        steps = bring_up(wanted, endpoints, Proc.current() if ephemeral else None)
        if session.todo is None:
            require_endpoints(endpoints, options.bind, [record for _, record in session.running()])
        check_machine(session, wanted.plan, runtime)
        session.say_how_long(steps.prepare, options.runtime, wanted.plan.profile)
        session.carry_out([*steps.prepare, steps.render])
        for left in reversed(range(TRIES)):
            try:
                record = session.do(steps.start)
                break
            except LabError as error:
                if not (left and lost_port(error)):
                    raise
            session.listener.note("another program took a port before the server listened on it: started again")
            endpoints = claim_endpoints(options.ports, options.bind, [record for _, record in session.running()])
            steps = bring_up(wanted, endpoints, steps.record.owner)
        return RunningStack(session, lab, stack, runtime, record.asked, record)


@dataclass(frozen=True)
class BringUp:
    """The actions that bring one stack up, in their order."""

    prepare: Sequence[Action[str]]
    render: Action[str]
    start: Action[Record]
    record: Record


def bring_up(stack: Stack, endpoints: Endpoints, owner: Proc | None = None) -> BringUp:
    """What brings a stack up on its runtime; nothing is made yet. Raises LabError for whatever can be known to fail.

    ``endpoints``: the ports that a person chose for it.
    """
    plan, runtime, options = stack.plan, stack.runtime, stack.options

    def render(listener: Listener) -> str:
        # Planned again, now that the weights are here: the configuration may name their vocabulary's size.
        request = stack.planned_again().request
        models = repository.render(request)
        if spare := repository.spare(request) if request.spare else []:
            listener.note(repository.without_effect(spare))
        if left := repository.unknown(request) if request.lenient else []:
            listener.note(f"the image's templates ask for {', '.join(left)}, which labctl does not know: not set")
        return f"{len(models)} model{'' if len(models) == 1 else 's'}, every config.pbtxt valid"

    prepare = preparations(plan, runtime, stack.session.workspace)
    policy = balancing_policy(plan, options.replicas, options.balance, options.expose)
    places = free_endpoints(options.replicas or 1) if policy or options.expose else []
    published = None
    if options.expose:  # those are for other machines; this one's clients need no token
        published = Endpoints(*(f"{options.bind}:{port}" for port in endpoints.ports))
        endpoints = free_endpoints(1)[0] if policy else places[0]
    record = Record(
        stack=stack.name,
        lab=stack.lab.folder,
        runtime=runtime.name,
        profile=plan.profile,
        settings=plan.settings,
        models=plan.stack.models,
        endpoints=endpoints,
        published=published,
        tokenizer_dir=plan.tokenizer_dir,
        effective=plan.effective,
        owner=owner,
        balance=policy,
        options=settle_options(options, plan),
    )
    record = with_servers(record, [Replica(number, place) for number, place in enumerate(places, 1)])
    rendered = Action("model repository", render, files=plan.files(), expected="")
    return BringUp(prepare, rendered, _start(stack, record), record)


def preparations(plan: Plan, runtime: Runtime, workspace: Workspace) -> list[Action[str]]:
    """What makes the serving environment and every artifact that is not there yet.

    Raises LabError: the runtime cannot serve it, or something that is there is damaged.
    """
    refuse(plan, runtime, workspace)
    actions = [*runtime.prepare(plan.profile, plan.image, plan.stack.packages)]
    if plan.release and plan.fetched and not plan.fetched.is_dir():
        title = f"templates of TensorRT-LLM {plan.release.name}"
        actions.append(runtime.copy_out(title, plan.image, plan.templates, plan.fetched, plan.release.tensorrt_llm))
    return actions + [
        _engine(plan, step, step.image_build, runtime, workspace) if step.image_build else make_artifact(step, runtime)
        for step in plan.steps
    ]


def check_machine(session: Session, plan: Plan, runtime: Runtime) -> None:
    """Hear what the plan has to say, and ask this machine's GPUs. Raises LabError where they cannot serve it."""
    for notice in plan.notices:
        session.listener.note(notice)
    if plan.profile == "gpu" and session.todo is None:
        for check in gpu_checks(plan, runtime.name, session.workspace):
            if check.state == "fail":
                raise LabError(f"{check.name}: {check.found}", "", check.remedy, code="check-failed")
            if check.state == "warn":
                session.listener.note(f"{check.name}: {check.found}; {check.remedy}")


def make_artifact(step: Step, runtime: Runtime) -> Action[str]:
    """Make what a step makes in the serving environment, where it is not there yet."""
    if step.ready():
        return Action(step.title, lambda listener: "cached")
    tool = runtime.tool(step.title, step.argv)

    def do(listener: Listener) -> str:
        tool.do(listener)
        return "made"

    return Action(step.title, do, tool.commands, [f"{step.path}/"])


def refuse(plan: Plan, runtime: Runtime, workspace: Workspace) -> None:
    """Raises LabError for a runtime that cannot serve what was planned."""
    if runtime.name != "local":
        return
    if plan.stack.packages:
        layer(plan.stack.packages, workspace, plan.profile).require()
    if plan.release:
        raise LabError(*NEEDS_IMAGE, code="image-needed")
    if plan.stack.image_only:
        raise LabError(
            f"{plan.name} is served by backends of NVIDIA's image",
            "the local runtime takes Triton from its wheel, which has the python backend alone",
            f"use --runtime compose, or --set {plan.stack.image_only}",
            code="image-needed",
        )


def _engine(plan: Plan, step: Step, build: Build, runtime: Runtime, workspace: Workspace) -> Action[str]:
    """An engine that is built in the image that serves it, and belongs to this machine's GPUs."""
    cached = step.ready()

    def run(argv: Sequence[str], listener: Listener) -> None:
        runtime.in_image(step.title, argv, plan.image, plan.ranks, plan.devices).do(listener)

    def do(listener: Listener) -> str:
        gpu = gpu_target(plan.image, plan.devices)
        if not cached:
            build.make(workspace, listener.progress, Builder(gpu, lambda argv: run(argv, listener)))
        check_target(build.manifest(workspace), gpu)
        return "cached" if cached else "made"

    if cached:
        return Action(step.title, do)
    shown = [one for action in engine_actions(plan, step, runtime, workspace) for one in action.commands]
    return Action(step.title, do, shown, [f"{step.path}/"])


def engine_actions(
    plan: Plan, step: Step, runtime: Runtime, workspace: Workspace, output: Path | None = None
) -> list[Action[Any]]:
    """The commands that build an engine in the image that serves it, at ``output``; without one, at its place."""
    assert step.image_build
    scratch, source = step.path.with_name(f".checkpoint-{step.path.name}"), step.image_build.source
    shape = source.name if source.kind == "random" else ""
    every = commands(step.image_build.options, source.locate(workspace), scratch, output or step.path, shape)
    return [runtime.in_image(step.title, argv, plan.image, plan.ranks, plan.devices) for argv in every]


def _start(stack: Stack, record: Record) -> Action[Record]:
    """Start the server and wait until it serves; on any failure but Ctrl-C nothing of it is left."""
    session, runtime, plan, folder = stack.session, stack.runtime, stack.plan, stack.folder
    run_dir, log_file = folder.run_dir(), folder.log_file()
    count = f"{replicas.counted(len(record.servers))} of " if record.balance else ""
    title = f"{count}tritonserver with {', '.join(plan.stack.models)}"
    server_start = runtime.start(stack.launch(record))

    def do(listener: Listener) -> Record:
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        atomic_write(log_file, b"", mode=0o600)
        for path in folder.replica_logs:
            path.unlink()
        replicas.make_room(session.workspace, record, record.servers)
        folder.make_secret()
        if record.exposed and not folder.read_token():
            folder.make_token()
        listener.step(title)
        began = time.monotonic()
        try:
            server = server_start.do(listener)
            session.remember(server.record)
            replicas.await_ready(stack, server.record, record.servers, server.exited)
            server.serves()
            if record.balance:
                replicas.await_balancer(runtime, record)
        except BaseException as error:
            if isinstance(error, LabError):  # while its log is there
                error = faults.explain_error(error, faults.stack_explainer(stack))
                if edits.not_shipped(session, plan):
                    undo = f"labctl undo {stack.name} puts the shipped files back"
                    error.remedy = "; ".join(filter(None, (error.remedy, undo)))
            # Where `up` was interrupted, what is there stays, and the person is told.
            if record.owner or not isinstance(error, KeyboardInterrupt):
                take_down(session, runtime, stack.name, force=True)
            raise error
        listener.done(f"READY after {time.monotonic() - began:.1f} s", timed=False)
        return server.record

    files = [*server_start.files, str(log_file), f"{run_dir}/", *map(str, (folder.state_file, folder.secret))]
    files += [str(folder.token)] if record.exposed else []
    return Action(title, do, server_start.commands, files, expected=record)


def death(session: Session, stack: str) -> LabError | None:
    """That a stack which was brought up is not there any more, how it ended, and its last words; None if it is."""
    record = session.remembered(stack)
    if record is None or session.find(stack):
        return None
    runtime = session.runtime(record.runtime)
    how = runtime.death_of(stack) or "nobody saw how"
    remedy = f"labctl up {stack}; docs/operate/security.md says what one request can do to this Triton"
    return LabError(
        f"the server of {stack} died: {how}", "", remedy, details=faults.tail(runtime, stack), code="server-died"
    )


def _already(there: RunningStack, options: UpOptions) -> RunningStack:
    """A server is there: fine if it is ready and as wanted, a refusal otherwise."""
    runtime, record, stack = there.runtime, there.record, there.name
    wanted = replace(there, options=options)
    if differing := differences(wanted.plan, options, record):
        raise LabError(
            f"{stack} is already up with other settings",
            f"on the {runtime.name} runtime, profile {record.profile}",
            f"labctl down {stack}",
            details=differing,
            code="stack-up-otherwise",
        )
    if still := faults.paused_models(there.session, record):
        raise LabError(
            f"{stack} is up, but its clock stands still",
            f"of {', '.join(still)}",
            f"labctl clock {stack} run",
            code="clock-stopped",
        )
    try:
        replicas.await_ready(wanted, record, record.servers, lambda: replicas.absent(runtime, record))
    except LabError as error:
        mine = faults.explain_error(error, faults.stack_explainer(wanted))
        raise LabError(
            f"{stack} is up but not ready: {mine.what}", mine.why, f"labctl down {stack}", code="stack-not-ready"
        ) from error
    return there
