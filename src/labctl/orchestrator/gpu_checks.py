"""What the gpu profile asks of a machine before anything is made: driver, chip, toolkit, memory, disk, model hub."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from labctl import weights
from labctl.engines.tensorrt_llm import GpuInfo, check_target, require
from labctl.errors import LabError
from labctl.orchestrator.gpu_memory import needed
from labctl.orchestrator.plan import Plan
from labctl.preflight import Check, from_error
from labctl.repository.releases import Release
from labctl.runtimes import docker_engine, nvidia
from labctl.runtimes.nvidia import Gpu
from labctl.workspace import Workspace

CUDA_12 = (525, 60, 13)  # the oldest driver that runs programs of any CUDA 12
BUILD_FACTOR = 3  # weights, checkpoint and engine lie side by side while one is built


def gpu_checks(plan: Plan | None, runtime: str, workspace: Workspace) -> list[Check]:
    """One row per thing; those that need a driver are left out where there is none.

    Args:
        plan: what is to be served; None asks only for what every stack needs.
        runtime: ``compose`` or ``local``.
    """
    checks: list[Check] = []
    release = plan.release if plan else None
    try:
        gpus = nvidia.gpus()
    except LabError as error:
        gpus = []
        checks.append(Check("NVIDIA driver", "fail", ": ".join(filter(None, (error.what, error.why))), error.remedy))
    if gpus:
        checks.append(driver(gpus[0].driver, release))
    if runtime == "compose":
        checks.append(from_error("container toolkit", _toolkit))
    if plan:
        checks += _of_plan(plan, gpus, workspace)
    return checks


def driver(version: str, release: Release | None) -> Check:
    """Whether the driver is new enough for the image's CUDA."""
    name = "NVIDIA driver"
    if _numbers(version) < CUDA_12:
        oldest = ".".join(map(str, CUDA_12))
        return Check(name, "fail", f"{version} (CUDA 12 needs {oldest} or newer)", "install a newer driver")
    if release and _numbers(version) < _numbers(release.driver):
        found = f"{version}; the image of {release.name} is made for CUDA {release.cuda}, driver {release.driver}"
        return Check(name, "warn", found, "it runs in CUDA's compatibility mode; install a newer one if it does not")
    return Check(name, "ok", version)


def _of_plan(plan: Plan, gpus: list[Gpu], workspace: Workspace) -> Iterator[Check]:
    for step in plan.steps:
        if step.image_build is None:
            continue
        build = step.image_build
        if gpus:
            first = gpus[0]
            info = GpuInfo(first.name, first.compute_capability, first.driver, "", len(gpus))
            yield from_error("GPU", partial(_chip, info, build.options))
            options = build.options
            tokens = int(plan.settings.get("max_tokens_in_paged_kv_cache") or 0)
            wanted = needed(
                build.source, options, tokens or options["max_input_len"] + options["max_output_len"], workspace
            )
            yield _memory(gpus, plan.ranks, wanted)
        if not step.ready():
            yield _disk(plan, workspace)
            yield from_error("model hub", partial(_hub, build.source, workspace))
        elif gpus:
            yield from_error("engine", partial(_fits, build.manifest(workspace), plan.image))


def _chip(info: GpuInfo, options: Mapping[str, Any]) -> str:
    require(options, info)
    return f"{info.gpus} x {info.gpu_name}, compute capability {info.compute_capability}"


def _fits(manifest: Mapping[str, Any], image: str) -> str:
    from labctl.runtimes.image_builder import target

    check_target(manifest, target(image))
    return "built for this GPU and image"


def _memory(gpus: list[Gpu], ranks: int, wanted: int | None) -> Check:
    free = min(gpu.free for gpu in gpus[:ranks])
    found = f"{free / 1e9:.1f} of {gpus[0].memory / 1e9:.1f} GB free"
    if wanted is None:
        return Check("GPU memory", "ok", f"{found}; what the model needs is known once its weights are here")
    said = f"{found}; the engine and its smallest KV cache need {wanted / 1e9:.1f} GB"
    if free >= wanted:
        return Check("GPU memory", "ok", said)
    remedy = "--set tp_size=2 over two GPUs, --set quantization=fp8, a smaller model, or free the GPU"
    return Check("GPU memory", "fail", said, remedy)


def _disk(plan: Plan, workspace: Workspace) -> Check:
    where = next(folder for folder in (workspace.cache, *workspace.cache.parents) if folder.exists())
    free = shutil.disk_usage(where).free
    folders = [step.path for step in plan.steps if step.path.is_dir()]
    sizes = [file.stat().st_size for folder in folders for file in folder.rglob("*.safetensors")]
    builds = [step.image_build for step in plan.steps if step.image_build]
    options = {"tp_size": 1, "pp_size": 1, "quantization": "none"}
    model = sum(sizes) or max((needed(b.source, options, 0, workspace) or 0 for b in builds), default=0)
    found = f"{free / 1e9:.1f} GB free for {workspace.cache}; building takes about {BUILD_FACTOR * model / 1e9:.0f} GB"
    if free >= BUILD_FACTOR * model:
        return Check("disk for engines", "ok", found)
    return Check("disk for engines", "fail", found, "free some space, or set LABS_CACHE to a folder on another disk")


def _hub(source: weights.Source, workspace: Workspace) -> str:
    if source.kind != "hub":
        return f"not asked: {source.spec}"
    if weights.ready(source, workspace):
        return "not asked: cached"
    weights.ask_access(source)
    return f"{source.name} may be fetched"


def _toolkit() -> str:
    docker_engine.require_gpu()
    return "the Docker engine hands GPUs to containers"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
