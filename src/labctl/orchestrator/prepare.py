"""What must be there before a server can start: images, templates, weights, engines; each made once, in order."""

from __future__ import annotations

from labctl.engines.tensorrt_llm import GpuInfo, check_target
from labctl.errors import LabError
from labctl.listener import Listener
from labctl.orchestrator.gpu_checks import gpu_checks
from labctl.orchestrator.plan import Plan, Step
from labctl.runtimes.base import Runtime
from labctl.runtimes.local import NEEDS_IMAGE
from labctl.workspace import Workspace


def prepare(plan: Plan, runtime: Runtime, listener: Listener, workspace: Workspace) -> None:
    """Make the serving environment and every artifact that is not there yet.

    Raises:
        LabError: this machine's GPUs cannot serve it, something cannot be made, or an engine is there that was built
            for another GPU or image.
    """
    refuse(plan, runtime)
    for notice in plan.notices:
        listener.note(notice)
    if plan.profile == "gpu":
        for check in gpu_checks(plan, runtime.name, workspace):
            if check.state == "fail":
                raise LabError(f"{check.name}: {check.found}", "", check.remedy)
            if check.state == "warn":
                listener.note(f"{check.name}: {check.found}; {check.remedy}")
    runtime.prepare(plan.profile, listener, plan.image)
    if plan.release and plan.fetched and not plan.fetched.is_dir():
        listener.step(f"templates of TensorRT-LLM {plan.release.name}")
        runtime.copy_out(plan.image, plan.release.templates, plan.fetched, listener)
        listener.done("copied out of the image")
    for step in plan.steps:
        listener.step(step.title)
        if step.image_build:
            listener.done(_in_image(plan, step, runtime, listener, workspace))
        elif step.ready():
            listener.done("cached")
        else:
            listener.command(["python", *step.argv])
            runtime.tool(step.argv, listener)
            listener.done("made")


def refuse(plan: Plan, runtime: Runtime) -> None:
    """Raises LabError for a runtime that cannot serve what was planned."""
    if runtime.name != "local":
        return
    if plan.release:
        raise LabError(*NEEDS_IMAGE)
    if plan.stack.image_only:
        raise LabError(
            f"{plan.name} is served by backends of NVIDIA's image",
            "the local runtime takes Triton from its wheel, which has the python backend alone",
            f"use --runtime compose, or --set {plan.stack.image_only}",
        )


def _in_image(plan: Plan, step: Step, runtime: Runtime, listener: Listener, workspace: Workspace) -> str:
    """An engine that is built in the image that serves it, and belongs to this machine's GPUs."""
    build = step.image_build
    assert build is not None
    builder = runtime.builder(plan.image, plan.ranks, listener)
    cached = step.ready()
    if not cached:
        build.make(workspace, listener.progress, builder)
    check_target(build.manifest(workspace), GpuInfo(**builder.hardware))
    return "cached" if cached else "made"
