"""Bring a stack up: plan → ports → weights → engine → repository → server → READY."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from labbuild import release
from labbuild.protocol import Builder
from labbuild.tensorrt_llm import check_target
from labctl import repository
from labctl.artifacts.engines import Build
from labctl.artifacts.store import Artifact
from labctl.doctor.gpu import gpu_checks
from labctl.manifest.schema import Lab
from labctl.options import Options
from labctl.plan import Plan
from labctl.runtimes.base import REMOVED, Runtime
from labctl.runtimes.images import gpu_target
from labctl.runtimes.layers import layer
from labctl.runtimes.local import NEEDS_IMAGE
from labctl.runtimes.record import Endpoints, Proc, Record, Replica
from labctl.stack import edits, faults, replicas
from labctl.stack.down import take_down
from labctl.stack.ports import chosen_endpoints, claim_endpoints, free_endpoints, lost_port, require_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack, Stack, balancing_policy, option_differences, with_servers
from labctl.triton import readiness
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

TRIES = 3  # starts on ports that nobody had a moment before


def up(session: Session, lab: Lab, stack: str, options: Options, ephemeral: bool = False) -> RunningStack:
    """Bring one stack up and return when every model answers.

    ``ephemeral``: the stack must not outlive this process (``run``, ``bench``). Raises LabError with nothing left
    behind.
    """
    with session.lock(stack, "up"):
        running = session.find(stack)
        if running and running.record.orphaned():  # its `run` was killed
            take_down(session, running.runtime, stack, force=True)
        elif running:
            return _already(replace(running, own=lab, already=True), options)
        runtime = session.choose(options.runtime, options.profile)
        endpoints = chosen_endpoints(options.ports)
        wanted = Stack(session, lab, stack, runtime, options)
        record = record_of(wanted, endpoints, Proc.current() if ephemeral else None)
        refuse_unservable(wanted.plan, runtime, session.workspace)
        if runtime.leftovers(stack):  # its server died: what stood around it has its ports
            take_down(session, runtime, stack, force=True)
        require_endpoints(endpoints, session.running())
        check_machine(session, wanted.plan, runtime)
        session.say_how_long(preparation_minutes(wanted.plan, runtime))
        prepare_artifacts(session, wanted.plan, runtime)
        wanted = wanted.with_options(options)  # now that the weights are here
        _render(wanted)
        for left in reversed(range(TRIES)):
            try:
                record = readiness.start_once_more(partial(_start, wanted, record), session.listener.note)
                break
            except LabError as error:
                if not (left and lost_port(error)):
                    raise
            session.listener.note("another program took a port before the server listened on it: started again")
            endpoints = claim_endpoints(options.ports, session.running())
            record = record_of(wanted, endpoints, record.owner)
        return RunningStack.of(session, lab, runtime, record)


def _render(stack: Stack) -> None:
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


def record_of(stack: Stack, endpoints: Endpoints, owner: Proc | None = None) -> Record:
    """What will be known of the stack when it is up. Raises LabError: it cannot be balanced as asked."""
    plan, options = stack.plan, stack.options
    policy = balancing_policy(plan, options)
    places = free_endpoints(options.replicas or 1) if policy else []
    record = Record(
        stack=stack.name,
        lab=stack.lab.folder,
        runtime=stack.runtime.name,
        profile=plan.profile,
        settings=plan.settings,
        models=plan.stack.models,
        endpoints=endpoints,
        tokenizer_dir=plan.tokenizer_dir,
        effective=plan.effective,
        owner=owner,
        balance=policy,
        options=stack.settled,
    )
    return with_servers(record, [Replica(number, place) for number, place in enumerate(places, 1)])


def preparation_minutes(plan: Plan, runtime: Runtime) -> Sequence[int]:
    """About how long each thing takes that is made before the server, where that is long."""
    return runtime.minutes(plan.profile, plan.image, plan.stack.packages)


def prepare_artifacts(session: Session, plan: Plan, runtime: Runtime) -> None:
    """Make the serving environment and every artifact that is not there yet, each in its turn.

    Raises LabError: something cannot be made, or something that is there is damaged.
    """
    listener = session.listener
    runtime.prepare(listener, plan.profile, plan.image, plan.stack.packages)
    if plan.fetched and not plan.fetched.is_dir():
        listener.step(f"templates of TensorRT-LLM {release.RELEASE}")
        runtime.copy_out(listener, plan.image, release.TEMPLATES, plan.fetched, release.PACKAGE)
        listener.done("copied out of the image")
    for artifact in plan.artifacts:
        make_artifact(session, artifact, runtime, plan)


def check_machine(session: Session, plan: Plan, runtime: Runtime) -> None:
    """Hear what the plan has to say, and ask this machine's GPUs. Raises LabError where they cannot serve it."""
    for notice in plan.notices:
        session.listener.note(notice)
    if plan.profile == "gpu":
        for check in gpu_checks(plan, runtime.name, session.workspace):
            if check.state == "fail":
                raise LabError(f"{check.name}: {check.found}", "", check.remedy, code="check-failed")
            if check.state == "warn":
                session.listener.note(f"{check.name}: {check.found}; {check.remedy}")


def make_artifact(session: Session, artifact: Artifact, runtime: Runtime, plan: Plan | None = None) -> None:
    """Make it where it is not there yet: in the serving environment, or in the image that serves it."""
    listener, cached = session.listener, artifact.ready(session.workspace)
    listener.step(artifact.title)
    if plan and isinstance(artifact, Build) and artifact.of_image:
        _make_engine(session, plan, artifact, runtime)
    elif not cached:
        runtime.tool(listener, artifact.argv)
    listener.done("cached" if cached else "made")


def refuse_unservable(plan: Plan, runtime: Runtime, workspace: Workspace) -> None:
    """Raises LabError for a runtime that cannot serve what was planned."""
    if runtime.name != "local":
        return
    if plan.stack.packages:
        layer(plan.stack.packages, workspace, plan.profile).require()
    if plan.trtllm:
        raise LabError(*NEEDS_IMAGE, code="image-needed")
    if plan.stack.image_only:
        raise LabError(
            f"{plan.name} is served by backends of NVIDIA's image",
            "the local runtime takes Triton from its wheel, which has the python backend alone",
            f"use --runtime compose, or --set {plan.stack.image_only}",
            code="image-needed",
        )


def _make_engine(session: Session, plan: Plan, build: Build, runtime: Runtime) -> None:
    """An engine that is built in the image that serves it, and belongs to this machine's GPU."""
    listener, workspace = session.listener, session.workspace

    def run(argv: Sequence[str]) -> None:
        runtime.in_image(listener, argv, plan.image, plan.gpu)

    gpu = gpu_target(plan.image, plan.gpu)
    if not build.ready(workspace):
        build.make(workspace, listener.progress, Builder(gpu, run))
    check_target(build.manifest(workspace), gpu)


def _start(stack: Stack, record: Record) -> Record:
    """Start the server and wait until it serves; its record. On any failure but Ctrl-C nothing of it is left."""
    session, runtime, plan, folder = stack.session, stack.runtime, stack.plan, stack.folder
    run_dir, log_file = folder.run_dir(), folder.log_file()
    count = f"{replicas.replicas_in_words(len(record.servers))} of " if record.balance else ""
    listener = session.listener
    listener.step(f"{count}tritonserver with {', '.join(plan.stack.models)}")
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    atomic_write(log_file, b"", mode=0o600)
    for path in folder.replica_logs:
        path.unlink()
    replicas.make_room(session.workspace, record, record.servers)
    folder.make_secret()
    began = time.monotonic()
    try:
        server = runtime.start(listener, plan, record)
        session.remember(server.record)
        replicas.await_ready(stack, server.record, record.servers, server.exited)
        if record.balance:
            replicas.await_balancer(runtime, record)
    except BaseException as error:
        if isinstance(error, LabError):  # while its log is there
            error = faults.explain_error(error, faults.stack_explainer(stack))
            if edits.not_shipped(session, plan):
                restore = "git restore FILE puts a shipped file back"
                error.remedy = "; ".join(filter(None, (error.remedy, restore)))
        # After Ctrl-C what was started stays, unless the stack belongs to this process; the command line says so.
        if record.owner or not isinstance(error, KeyboardInterrupt):
            take_down(session, runtime, stack.name, force=True)
        raise error
    listener.done(f"READY after {time.monotonic() - began:.1f} s", timed=False)
    return server.record


def death_of_stack(session: Session, stack: str) -> LabError | None:
    """That a stack which was brought up is not there any more, how it ended, and its last words; None if it is.

    Raises Unknown: nobody can tell.
    """
    record = session.remembered(stack)
    if record is None or session.find(stack):
        return None
    runtime = session.runtime(record.runtime)
    how = runtime.death_of(stack) or "nobody saw how"
    if how == REMOVED:
        remedy = f"labctl down {stack}, labctl up {stack}"
        return LabError(f"the server of {stack} is gone: {how}", "not by labctl", remedy, code="server-removed")
    remedy = f"labctl up {stack}; docs/operate/security.md says what one request can do to this Triton"
    details = faults.tail(runtime, stack)
    return LabError(f"the server of {stack} died: {how}", "", remedy, details=details, code="server-died")


def _already(running: RunningStack, options: Options) -> RunningStack:
    """A server is there: fine if it is ready and as wanted, a refusal otherwise."""
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
        replicas.await_ready(wanted, record, record.servers, lambda: replicas.missing_servers(wanted))
    except LabError as error:
        explained = faults.explain_error(error, faults.stack_explainer(wanted))
        raise LabError(
            f"{stack} is up but not ready: {explained.what}",
            explained.why,
            f"labctl down {stack}",
            code="stack-not-ready",
        ) from error
    return running
