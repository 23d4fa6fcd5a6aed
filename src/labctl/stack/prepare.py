"""What must be there before a server can start: images, templates, weights, engines; each made once, in order."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.artifacts.engines import Build
from labctl.artifacts.tensorrt_llm import GpuInfo, check_target
from labctl.artifacts.tensorrt_llm_commands import commands
from labctl.doctor.gpu import gpu_checks
from labctl.listener import Listener
from labctl.plan import Plan, Step
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Runtime
from labctl.runtimes.image_builder import ImageBuilder
from labctl.runtimes.layers import layer
from labctl.runtimes.local import NEEDS_IMAGE
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.errors import LabError


def preparations(plan: Plan, runtime: Runtime, workspace: Workspace, guarded: bool = False) -> list[Action[str]]:
    """What makes the serving environment and every artifact that is not there yet.

    Raises:
        LabError: the runtime cannot serve it, or something that is there is damaged.
    """
    refuse(plan, runtime, workspace)
    actions = [*runtime.prepare(plan.profile, plan.image, guarded)]
    if plan.release and plan.fetched and not plan.fetched.is_dir():
        title = f"templates of TensorRT-LLM {plan.release.name}"
        actions.append(runtime.copy_out(title, plan.image, plan.templates, plan.fetched))
    return actions + [
        _engine(plan, step, step.image_build, runtime, workspace) if step.image_build else _artifact(step, runtime)
        for step in plan.steps
    ]


def check_machine(session: Session, plan: Plan, runtime: Runtime) -> None:
    """Hear what the plan has to say, and ask this machine's GPUs. Raises LabError where they cannot serve it."""
    for notice in plan.notices:
        session.listener.note(notice)
    if plan.profile == "gpu" and session.todo is None:
        for check in gpu_checks(plan, runtime.name, session.workspace):
            if check.state == "fail":
                raise LabError(f"{check.name}: {check.found}", "", check.remedy)
            if check.state == "warn":
                session.listener.note(f"{check.name}: {check.found}; {check.remedy}")


def _artifact(step: Step, runtime: Runtime) -> Action[str]:
    if step.ready():
        return Action(step.title, lambda listener: "cached")
    tool = runtime.tool(step.title, step.argv)

    def do(listener: Listener) -> str:
        tool.do(listener)
        return "made"

    return Action(step.title, do, tool.commands, [f"{step.path}/"])


def refuse(plan: Plan, runtime: Runtime, workspace: Workspace) -> None:
    """Raises LabError for a runtime that cannot serve what was planned."""
    packages = plan.stack.packages
    if runtime.name != "local":
        if packages:
            raise LabError(
                f"{plan.name} needs the packages of {packages}",
                f"the {runtime.name} runtime's image does not have them",
                "use --runtime local",
            )
        return
    if packages:
        layer(packages, workspace).require()
    if plan.release:
        raise LabError(*NEEDS_IMAGE)
    if plan.stack.image_only:
        raise LabError(
            f"{plan.name} is served by backends of NVIDIA's image",
            "the local runtime takes Triton from its wheel, which has the python backend alone",
            f"use --runtime compose, or --set {plan.stack.image_only}",
        )


def _engine(plan: Plan, step: Step, build: Build, runtime: Runtime, workspace: Workspace) -> Action[str]:
    """An engine that is built in the image that serves it, and belongs to this machine's GPUs."""
    cached = step.ready()

    def command(argv: Sequence[str]) -> Action[None]:
        return runtime.in_image(step.title, argv, plan.image, plan.ranks, plan.devices)

    def do(listener: Listener) -> str:
        builder = ImageBuilder(plan.image, lambda argv: command(argv).do(listener), plan.devices)
        if not cached:
            build.make(workspace, listener.progress, builder)
        check_target(build.manifest(workspace), GpuInfo(**builder.hardware))
        return "cached" if cached else "made"

    if cached:
        return Action(step.title, do)
    # The builder works in temporary folders beside the place where the engine will be.
    scratch = step.path.with_name(f".checkpoint-{step.path.name}")
    source = build.source.locate(workspace)
    shown = [command(argv) for argv in commands(build.options, source, scratch, step.path, build.source)]
    return Action(step.title, do, [one for action in shown for one in action.commands], [f"{step.path}/"])
