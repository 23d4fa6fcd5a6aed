"""The whole checklist of ``labctl doctor``: the machine, its runtimes, and what one stack needs on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from labctl.doctor.gpu import gpu_checks
from labctl.doctor.machine import DoctorCheck, from_error, machine_checks, system_check
from labctl.limits import CLASS_TOKEN
from labctl.plan import Plan
from labctl.runtimes import docker_engine, images, wheel
from labctl.runtimes.base import Runtime
from labctl.runtimes.layers import NAMES, Layer, layer
from labctl.workspace import Workspace
from labkit.errors import LabError

IMAGES_DISK = 4e9  # bytes: the server's and the clients' images, and what building them leaves


def checklist(
    workspace: Workspace,
    runtime_named: Callable[[str], Runtime],
    claim_ports: Callable[[], object],
    plan: Plan | None,
    profile: str,
    *,
    workshop: bool,
) -> list[DoctorCheck]:
    """One row per check, in the order in which they are printed.

    Args:
        claim_ports: raises LabError where another program has Triton's usual ports.
        plan: what is to be served; None checks only what every stack needs.
        workshop: also measure this machine's room, memory and speed (takes about ``workshop.BUDGET_S`` seconds).
    """
    checks = [system_check(), *machine_checks(workspace.cache)]
    engine = () if CLASS_TOKEN.is_file() else ("compose",)
    names = ("compose",) if plan and plan.trtllm else ("local", *engine)
    runtimes = [_check_runtime(runtime_named(name), profile) for name in names]
    if any(check.state == "ok" for check in runtimes):  # one of them is enough
        runtimes = [check if check.state == "ok" else replace(check, state="warn") for check in runtimes]
    compose_answers = names[-1] == "compose" and runtimes[-1].state == "ok"
    checks += [*runtimes, *([_engine_disk()] if compose_answers else [])]
    checks.append(from_error("ports 8000-8002", claim_ports, "warn", "free"))
    if profile == "gpu":
        checks += gpu_checks(plan, "compose" if compose_answers or "local" not in names else "local", workspace)
    checks += [_check_layer(layer(name, workspace, profile), plan) for name in NAMES]
    if plan:
        for artifact in plan.artifacts:
            ready = artifact.ready(workspace)
            state = "cached" if ready else "to be made"
            checks.append(DoctorCheck.of(ready, artifact.title, state, f"labctl up {plan.name}", "warn"))
    if workshop:
        from labctl.doctor import workshop as questions  # numpy: only where it is asked for

        checks += questions.checks(workspace.root)
    return checks


def _check_runtime(runtime: Runtime, profile: str) -> DoctorCheck:
    def ask() -> str:
        runtime.check(profile)
        if runtime.name == "local":
            return f"Triton {wheel.TRITON_OF_WHEEL.get(wheel.find_wheel().version, '')}"
        return docker_engine.describe_engine()

    return from_error(f"runtime {runtime.name}", ask)


def _engine_disk() -> DoctorCheck:
    """The disk that images are built on: the engine's own, not the cache's."""

    def ask() -> str:
        root, free = docker_engine.data_root()
        if free is None:
            return f"{root} is not on this machine"
        found = f"{free / 1e9:.1f} GB free in {root}"
        if free < IMAGES_DISK:
            raise LabError(found, f"images take {IMAGES_DISK / 1e9:.0f}", images.MORE_DISK, code="disk-full")
        return found

    return from_error("Docker's disk", ask, "warn")


def _check_layer(found: Layer, plan: Plan | None) -> DoctorCheck:
    """Whether the packages of an engine are installed; only a stack that is served with them needs them."""
    if plan and plan.served.packages == found.name:
        return from_error(found.name, lambda: f"installed in {found.require()}")
    state = f"installed in {found.path}" if found.ready else f"not installed ({found.elsewhere or found.remedy})"
    return DoctorCheck(found.name, "ok", state)
