"""The gpu profile's requirements for a machine, before anything is built: driver, chip, toolkit, memory, disk, hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import psutil

from labbuild import release
from labbuild.protocol import GpuInfo
from labbuild.tensorrt_llm import check_target, require
from labctl.artifacts import hub, weights
from labctl.artifacts.engines import Build
from labctl.doctor.gpu_memory import MemoryShape
from labctl.doctor.machine import MORE_DISK, DoctorCheck, from_error
from labctl.plan import Plan
from labctl.runtimes import docker_engine, nvidia
from labctl.runtimes.images import PACKAGES_CUDA, gpu_target
from labctl.runtimes.nvidia import Gpu
from labctl.workspace import Workspace
from labkit.disk import free_bytes

PLAIN_CUDA = 12  # of NVIDIA's images
GPU_SHM = "2g"  # as compose.gpu.yaml has it
SHM_NEEDED = 2**30
BUILD_FACTOR = 3  # weights, checkpoint and engine lie side by side while one is built
BUILD_COPIES = 2  # of the weights in the machine's memory at a time: read and converted, or converted and serialised
BF16, VLLM_CHIP = (8, 0), (7, 5)  # compute capabilities: with bf16, and the oldest that vLLM's wheel has kernels for


def gpu_checks(plan: Plan | None, runtime: str, workspace: Workspace) -> list[DoctorCheck]:
    """One row for each check. Without a driver, the checks that need one are left out.

    Args:
        plan: what is to be served; None asks only for what every stack needs.
        runtime: ``compose`` or ``local``.
    """
    gpus: list[Gpu] = []

    def ask() -> str:
        gpus.extend(nvidia.gpus(plan.gpu if plan else ""))
        return gpus[0].driver

    checks = [from_error("NVIDIA driver", ask)]
    if gpus and runtime != "local":  # the local runtime itself checks the driver for PyTorch
        checks = [driver(gpus[0].driver, *_computes(plan))]
    if runtime == "compose":
        hands = "the Docker engine hands GPUs to containers"
        checks.append(from_error("container toolkit", docker_engine.require_gpu, found=hands))
    if plan:
        checks += _of_plan(plan, gpus, runtime, workspace)
    return checks


def _computes(plan: Plan | None) -> tuple[bool, bool]:
    """What computes on the GPU: TensorRT-LLM of its image, and whether PyTorch of the package index does."""
    if plan is None or plan.trtllm:
        return plan is not None, False
    return False, not plan.stack.image_only


def driver(version: str, trtllm: bool, pytorch: bool = False) -> DoctorCheck:
    """Whether the driver is new enough for what computes in the image: its own CUDA, or PyTorch's."""
    name = "NVIDIA driver"
    cuda = PACKAGES_CUDA if pytorch else PLAIN_CUDA
    if oldest := nvidia.too_old(version, cuda):
        return DoctorCheck(name, "fail", f"{version} (CUDA {cuda} needs {oldest} or newer)", "install a newer driver")
    if trtllm and nvidia.numbers(version) < nvidia.numbers(release.DRIVER):
        made_for = f"CUDA {release.CUDA}, driver {release.DRIVER}"
        found = f"{version}; the image of TensorRT-LLM {release.RELEASE} is made for {made_for}"
        return DoctorCheck(
            name, "warn", found, "what is compiled on this machine (fp8 kernels) may fail; install a newer one then"
        )
    return DoctorCheck(name, "ok", version)


def _of_plan(plan: Plan, gpus: list[Gpu], runtime: str, workspace: Workspace) -> Iterator[DoctorCheck]:
    builds = plan.image_builds
    first = gpus[0] if gpus else None
    if first and not builds:
        yield _chip(first, plan)
    if first:
        info = GpuInfo(first.name, first.compute_capability, first.driver, "")
        chip = f"{info.gpu_name}, compute capability {info.compute_capability}"
        for build in builds:
            yield from_error("GPU", partial(require, build.options, info), found=chip)
        if builds or plan.stack.copies:
            yield _memory(first, plan, workspace)
    if (host := _host_memory(plan, bool(builds), workspace)) is not None:
        yield host
    if runtime == "compose":
        yield _shm(plan)
    for build in builds:
        if not build.ready(workspace):
            yield _disk(build, workspace)
        elif first:
            yield from_error("engine", partial(_fits, build.manifest(workspace), plan))
    if spec := plan.settings.get("model"):
        yield from_error("model hub", partial(_hub, weights.parse_source(str(spec)), workspace))


def _chip(gpu: Gpu, plan: Plan) -> DoctorCheck:
    """The chip's number formats, and whether the engine has kernels for it."""
    capability = nvidia.numbers(gpu.compute_capability)
    precision = "bf16 and fp16" if capability >= BF16 else "fp16: bf16 needs compute capability 8.0"
    found = f"{gpu.name}, compute capability {gpu.compute_capability}: {precision}"
    able = plan.settings.get("engine") != "vllm" or capability >= VLLM_CHIP
    remedy = f"--set engine=transformers: vLLM needs compute capability {'.'.join(map(str, VLLM_CHIP))}"
    return DoctorCheck.of(able, "GPU", found, remedy)


def _fits(manifest: Mapping[str, Any], plan: Plan) -> str:
    check_target(manifest, gpu_target(plan.image, plan.gpu))
    return "built for this GPU and image"


def _memory(gpu: Gpu, plan: Plan, workspace: Workspace) -> DoctorCheck:
    """All models of a stack are on one GPU."""
    found = "the driver does not say how much is free"
    if gpu.free is not None:
        found = f"{gpu.free / 1e9:.1f} of {(gpu.memory or 0) / 1e9:.1f} GB free"
    try:
        sizes = _memory_needed(plan, workspace)
    except ValueError as error:
        return DoctorCheck("GPU memory", "fail", str(error), "a larger --set kv_cache_memory_mib")
    if sizes is None:
        return DoctorCheck("GPU memory", "ok", f"{found}; what this model needs is not known beforehand")
    needed = sum(sizes.values())
    parts = " + ".join(f"{part} {size / 1e9:.1f}" for part, size in sizes.items())
    needs = f"{found}; needed {needed / 1e9:.1f} GB ({parts})"
    if gpu.free is None:
        return DoctorCheck("GPU memory", "warn", needs, "see that the GPU has that much")
    ways = "a smaller --set kv_cache_memory_mib, a smaller model, or free the GPU"
    return DoctorCheck.of(gpu.free >= needed, "GPU memory", needs, ways)


def _memory_needed(plan: Plan, workspace: Workspace) -> dict[str, int] | None:
    """The bytes that each part of a stack takes on a GPU; None for TensorRT-LLM, and if a model's size is not known."""
    copies, shape = plan.stack.copies, MemoryShape.of(weights.parse_source(str(plan.settings["model"])), workspace)
    if plan.trtllm or shape is None:
        return None
    tokens, cache = shape.kv_cache(plan.settings)
    copied = f"{copies} copies of the weights" if copies > 1 else "the weights"
    return {copied: shape.copies(copies), f"the KV cache of {tokens:,} tokens": cache}


def _host_memory(plan: Plan, builds: bool, workspace: Workspace) -> DoctorCheck | None:
    """Weights pass through the machine's memory: all copies at the same time, or those of an engine's build."""
    copies = max(plan.stack.copies, BUILD_COPIES * builds)
    shape = MemoryShape.of(weights.parse_source(str(plan.settings["model"])), workspace) if copies else None
    if shape is None:
        return None
    free, needed = psutil.virtual_memory().available, copies * shape.weights
    found = f"{free / 1e9:.1f} GB free; loading takes about {needed / 1e9:.1f} GB"
    return DoctorCheck.of(free >= needed, "memory", found, "close other programs, or take a smaller model", "warn")


def _shm(plan: Plan) -> DoctorCheck:
    """The container's /dev/shm lies in the machine's memory."""
    size = plan.stack.server.shm_size or os.environ.get("LABS_SHM_SIZE") or GPU_SHM
    limit, free = _bytes(size), psutil.virtual_memory().available
    if limit < SHM_NEEDED:
        return DoctorCheck("shared memory", "fail", f"{size} for the container", "LABS_SHM_SIZE=2g, or unset it")
    if free < limit:
        found = f"{size} for the container, but {free / 1e9:.1f} GB of memory are free"
        remedy = "free some memory: pages of /dev/shm are taken as they are used"
        return DoctorCheck("shared memory", "warn", found, remedy)
    return DoctorCheck("shared memory", "ok", f"{size} for the container")


def _bytes(size: str) -> int:
    """A size as Docker writes it ("256m") in bytes; 0 if it is not one."""
    match = re.fullmatch(r"(\d+)([bkmg]?)b?", size.strip().lower())
    if match is None:
        return 0
    return int(match[1]) * {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]]


def _disk(build: Build, workspace: Workspace) -> DoctorCheck:
    free, shape = free_bytes(build.locate(workspace)), MemoryShape.of(build.source, workspace)
    needed = BUILD_FACTOR * shape.weights if shape else 0
    takes = f"{needed / 1e9:.0f} GB" if shape else f"{BUILD_FACTOR} times the model's size"
    found = f"{free / 1e9:.1f} GB free for {workspace.cache}; a build takes about {takes}"
    return DoctorCheck.of(free >= needed, "disk for engines", found, MORE_DISK)


def _hub(source: weights.Source, workspace: Workspace) -> str:
    if source.kind != "hub":
        return f"not asked: {source.spec}"
    if source.ready(workspace):
        return "not asked: cached"
    hub.require_access(source.name, source.revision)
    return f"{source.name} may be fetched"
