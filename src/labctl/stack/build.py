"""What must be there before a server can start: images, templates, weights, engines; each made once, in order.

A machine or a runtime that cannot serve what is planned is refused before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from labbuild.protocol import Builder
from labbuild.tensorrt_llm import check_target
from labctl import repository
from labctl.artifacts import weights
from labctl.artifacts.engines import Build
from labctl.artifacts.store import Artifact
from labctl.doctor.gpu import gpu_checks
from labctl.lab import Lab
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import compose_project, images, nvidia
from labctl.runtimes.base import Runtime
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_project import Projects
from labctl.runtimes.images import gpu_target
from labctl.runtimes.layers import layer
from labctl.runtimes.local import NEEDS_IMAGE
from labctl.runtimes.lock import stack_lock
from labctl.stack.ports import named_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, record_of
from labctl.workspace import Workspace
from labkit.errors import LabError


def prepare_artifacts(session: Session, plan: Plan, runtime: Runtime) -> bool:
    """Make the serving environment and every artifact that is not there yet, each in its turn.

    Returns whether an artifact was made.

    Raises LabError: something cannot be made, or something that is there is damaged.
    """
    runtime.prepare(session.listener, plan.profile, plan)
    made = [make_artifact(session, artifact, runtime, plan) for artifact in plan.artifacts]
    return any(made)


def check_machine(session: Session, plan: Plan, runtime: Runtime) -> None:
    """Repeat the notes of the plan, and look at this machine's GPUs. Raises LabError where they cannot serve it."""
    for notice in plan.notices:
        session.listener.note(notice)
    if plan.profile == "gpu":
        for check in gpu_checks(plan, runtime.name, session.workspace):
            if check.state == "fail":
                raise LabError(f"{check.name}: {check.found}", "", check.remedy, code="check-failed")
            if check.state == "warn":
                session.listener.note(f"{check.name}: {check.found}; {check.remedy}")


def make_artifact(session: Session, artifact: Artifact, runtime: Runtime, plan: Plan | None = None) -> bool:
    """Make it where it is not there yet: in the serving environment, or in the image that serves it. Was it made?"""
    listener, cached = session.listener, artifact.ready(session.workspace)
    listener.step(artifact.title)
    if plan and isinstance(artifact, Build) and artifact.of_image:
        _make_engine(session, plan, artifact, runtime)
    elif not cached:
        runtime.tool(listener, artifact.argv)
    listener.done("cached" if cached else "made")
    return not cached


def refuse_unservable(plan: Plan, runtime: Runtime, workspace: Workspace) -> None:
    """Raises LabError for a runtime that cannot serve what was planned."""
    if runtime.name != "local":
        return require_mounted(plan, workspace)
    if plan.served.packages:
        layer(plan.served.packages, workspace, plan.profile).require()
    if plan.trtllm:
        raise LabError(*NEEDS_IMAGE, code="image-needed")
    if plan.served.image_only:
        raise LabError(
            f"{plan.name} is served by backends of NVIDIA's image",
            "the local runtime takes Triton from its wheel, which has the python backend alone",
            f"use --runtime compose, or --set {plan.served.image_only}",
            code="image-needed",
        )
    return None


def require_mounted(plan: Plan, workspace: Workspace) -> None:
    """Raises LabError for weights that are in no folder which compose.yaml mounts."""
    for path in (artifact.locate(workspace) for artifact in plan.artifacts):
        if not any(path.is_relative_to(folder) for folder in (workspace.models, workspace.cache)):
            raise LabError(
                f"the containers cannot see {path}",
                "they see labs/shared/models and the cache",
                f"put it below {workspace.cache}, or use --runtime local",
                code="path-outside-containers",
            )


def _make_engine(session: Session, plan: Plan, build: Build, runtime: Runtime) -> None:
    """An engine that is built in the image that serves it, and belongs to this machine's GPU."""
    listener, workspace, image = session.listener, session.workspace, plan.image
    assert isinstance(runtime, ComposeRuntime) and image  # see refuse_unservable

    def run(argv: Sequence[str]) -> None:
        runtime.in_image(listener, argv, image, nvidia.gpus_of_server(plan.gpu, plan.ranks))

    gpu = gpu_target(image, nvidia.gpus_of_server(plan.gpu, plan.ranks))
    if not build.ready(workspace):
        build.make(workspace, listener.progress, Builder(gpu, run))
    check_target(build.manifest(workspace), gpu)


def build_engines(session: Session, lab: Lab, stack: str, options: Options, runtime: str | None) -> list[Path]:
    """Build the engines of a stack, and the weights that they need; the engines' folders.

    Raises LabError: it has none, or one cannot be built.
    """
    runner = session.choose(runtime, options.profile)
    plan = make_plan(session.workspace, lab, stack, options)
    if not (built := [artifact for artifact in plan.artifacts if isinstance(artifact, Build)]):
        raise LabError(f"stack {stack} has no engine", "its models are served from their weights", code="engine-none")
    refuse_unservable(plan, runner, session.workspace)
    check_machine(session, plan, runner)
    prepare_artifacts(session, plan, runner)
    return [build.locate(session.workspace) for build in built]


def build_images(session: Session, lab: Lab, stack: str, options: Options) -> list[str]:
    """Build the images of a stack that are missing; the names of all of them.

    Raises LabError: the stack cannot have these options, or an image cannot be built.
    """
    plan = make_plan(session.workspace, lab, stack, options)
    builds = compose_project.builds(Projects(session.workspace), plan.profile, plan.image, plan.served.packages)
    for notice in plan.notices:
        session.listener.note(notice)
    images.build_missing_images(session.listener, builds, plan.image)
    return list(builds)


def render_stack(
    session: Session, lab: Lab, stack: str, options: Options, runtime: Runtime, output: Path | None
) -> str:
    """Render the model repository of a stack, with the paths of that runtime. Returns what was rendered, in words.

    For containers, without a folder of the caller's, it also writes what ``docker compose --env-file`` needs.

    Raises:
        LabError: it cannot be rendered, the folder is not labctl's, or the server of a stack that is up reads it.
    """
    plan = make_plan(session.workspace, lab, stack, options, output).require_templates(session.workspace)
    folder, own, listener = plan.request.output, session.workspace.folder(stack), session.listener
    if output and folder.is_dir() and not all((path / repository.CONFIG).is_file() for path in folder.iterdir()):
        raise LabError(
            f"{folder} is not empty",
            "labctl has not rendered what is in it",
            "name another --output",
            code="output-not-empty",
        )
    by_hand = runtime if isinstance(runtime, ComposeRuntime) and output is None else None
    for notice in plan.notices:
        listener.note(notice)
    with _require_unserved(session, folder):
        models = repository.render_repository(plan.request)
        if by_hand:
            require_mounted(plan, session.workspace)
            planned = PlannedStack(session, lab, stack, by_hand, options)
            endpoints = named_endpoints(planned.options.ports)
            assert endpoints
            by_hand.write_files(planned.plan, record_of(planned, endpoints))
            listener.note(f"by hand: docker compose --env-file {own.env_file} up --wait")
    return f"{folder}: {', '.join(models)}"


@contextlib.contextmanager
def _require_unserved(session: Session, folder: Path) -> Iterator[None]:
    """While the block runs, no server reads that folder, and none comes up on it.

    Raises LabError: the folder's stack is up, or another command changes it.
    """
    stack = folder.resolve().parent.name
    if folder.resolve() != session.workspace.folder(stack).repository.resolve():
        yield
        return
    with stack_lock(session.workspace, stack, "render"):
        if RunningStack.find(session, stack):
            raise LabError(
                f"{stack} is up, and its server reads {folder}",
                "its next start would serve what is rendered now, with settings that no command knows of",
                f"name another --output, or labctl down {stack}",
                code="output-served",
            )
        yield


def pull_weights(session: Session, what: str, options: Options, runtime: str | None) -> Sequence[Path]:
    """Make the weights of a model source, or of a stack with its settings; their folders."""
    if ":" in what or "/" in what:
        sources = [weights.parse_source(what)]
    else:
        lab, stack = session.catalog.stack(what)
        plan = make_plan(session.workspace, lab, stack, options)
        sources = [artifact for artifact in plan.artifacts if isinstance(artifact, weights.Source)]
    runner = session.choose(runtime, options.profile)
    runner.prepare(session.listener, options.profile)
    for source in sources:
        make_artifact(session, source, runner)
    return [source.locate(session.workspace) for source in sources]
