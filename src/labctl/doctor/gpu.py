"""The gpu profile's requirements for a machine, before anything is built: driver, chip, toolkit, memory, disk, hub."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from labbuild import release
from labbuild.protocol import GpuInfo
from labbuild.tensorrt_llm import check_target, require
from labctl.artifacts import hub, weights
from labctl.artifacts.engines import Build
from labctl.doctor.gpu_memory import MemoryShape, memory_parts
from labctl.doctor.machine import MORE_DISK, DoctorCheck, from_error
from labctl.limits import available_memory
from labctl.plan import Plan
from labctl.runtimes import docker_engine, nvidia
from labctl.runtimes.images import PACKAGES_CUDA, gpu_target
from labctl.runtimes.layers import cuda_of
from labctl.runtimes.nvidia import Gpu
from labctl.workspace import Workspace
from labkit.disk import free_bytes

PLAIN_CUDA = 12  # of NVIDIA's images
GPU_SHM = "2g"  # as compose.gpu.yaml has it
SHM_NEEDED = 2**30
BUILD_FACTOR = 3  # weights, checkpoint and engine lie side by side while one is built
BUILD_COPIES = 2  # of the weights in the machine's memory at a time: read and converted, or converted and serialised
CACHE_STEP = 512 * 2**20  # bytes: what a smaller KV cache is named in
CACHE_LEAST = 2048  # MiB: a sequence of 4,096 tokens of Llama-2 7B
CACHE = "--set kv_cache_memory_mib"
SMALL_MODEL = "--set model=random:llama-100m"
BF16 = (8, 0)  # compute capability


def gpu_checks(plan: Plan | None, runtime: str, workspace: Workspace) -> list[DoctorCheck]:
    """One row for each check. Without a driver, the checks that need one are left out.

    Args:
        plan: what is to be served; None asks only for what every stack needs.
        runtime: ``compose`` or ``local``.
    """
    gpus: list[Gpu] = []

    def ask() -> str:
        gpus.extend(nvidia.gpus(plan.gpu if plan else None))
        return gpus[0].driver

    checks = [from_error("NVIDIA driver", ask)]
    if plan and gpus and plan.ranks > 1:
        found = f"{len(gpus)}; tp_size={plan.ranks} takes {plan.ranks}"
        checks.append(DoctorCheck.of(len(gpus) >= plan.ranks, "GPUs", found, "a smaller tp_size"))
    cuda = _cuda(plan, runtime, workspace)
    if gpus:
        loaded = nvidia.loaded_driver(gpus[0]) if runtime == "local" else gpus[0].driver
        checks[0] = driver(loaded, cuda, plan is not None and plan.trtllm)
    if runtime == "compose":
        hands = "the Docker engine hands GPUs to containers"
        checks.append(from_error("container toolkit", docker_engine.require_gpu, found=hands))
    if plan:
        checks += _of_plan(plan, gpus, runtime, workspace, cuda)
    return checks


def _cuda(plan: Plan | None, runtime: str, workspace: Workspace) -> int | None:
    """The CUDA that what computes on the GPU is built for: NVIDIA's image, or PyTorch of the package index."""
    if plan and (plan.trtllm or plan.served.image_only):
        return PLAIN_CUDA
    return cuda_of(plan.served.packages if plan else None, workspace) if runtime == "local" else PACKAGES_CUDA


def driver(version: str, cuda: int | None, trtllm: bool) -> DoctorCheck:
    """Whether the driver is new enough for what is built for that CUDA, where that is known."""
    name = "NVIDIA driver"
    if cuda and (why := nvidia.too_old(version, cuda)):
        return DoctorCheck(name, "fail", f"{version} ({why})", nvidia.newer_driver(cuda))
    if trtllm and nvidia.numbers(version) < nvidia.numbers(release.DRIVER):
        made_for = f"CUDA {release.CUDA}, driver {release.DRIVER}"
        found = f"{version}; the image of TensorRT-LLM {release.RELEASE} is made for {made_for}"
        return DoctorCheck(
            name, "warn", found, "what is compiled on this machine (fp8 kernels) may fail; install a newer one then"
        )
    older = cuda == PLAIN_CUDA and nvidia.too_old(version, 13)
    return DoctorCheck(name, "ok", f"{version}, which is too old for CUDA 13: CUDA 12 is used" if older else version)


def _of_plan(
    plan: Plan, gpus: list[Gpu], runtime: str, workspace: Workspace, cuda: int | None
) -> Iterator[DoctorCheck]:
    builds = plan.image_builds
    first = gpus[0] if gpus else None
    if first and not builds:
        yield _chip(first, cuda)
    if first:
        info = GpuInfo(first.name, first.compute_capability, first.driver)
        chip = f"{info.gpu_name}, compute capability {info.compute_capability}"
        for build in builds:
            yield from_error("GPU", partial(require, build.options, info), found=chip)
        if builds or plan.served.copies:
            yield _memory(first, plan, workspace)
    if runtime == "local" and plan.served.packages:
        yield _compiler()
    if (host := _host_memory(plan, bool(builds), workspace)) is not None:
        yield host
    if runtime == "compose":
        yield _shm()
    for build in builds:
        if not build.ready(workspace):
            yield _disk(build, workspace)
        elif first:
            yield from_error("engine", partial(_fits, build.manifest(workspace), plan))
    if spec := plan.settings.get("model"):
        yield from_error("model hub", partial(_hub, weights.parse_source(str(spec)), workspace))


def _compiler() -> DoctorCheck:
    """What Triton, the compiler, needs at vLLM's first step: it compiles a module for Python."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or ""
    missing = [name for name, there in (("a C compiler", compiler), (str(header), header.is_file())) if not there]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    remedy = f"apt-get install gcc libc6-dev libpython{version}-dev (Debian, Ubuntu), or CC=COMPILER"
    found = f"there is no {' and no '.join(missing)}: vLLM fails at its first step" if missing else compiler
    return DoctorCheck.of(not missing, "C compiler", found, remedy, "warn")


def _chip(gpu: Gpu, cuda: int | None) -> DoctorCheck:
    """The chip's number formats, and whether there are kernels for it."""
    capability = nvidia.numbers(gpu.compute_capability)
    precision = "bf16 and fp16" if capability >= BF16 else "fp16: bf16 needs compute capability 8.0"
    found = f"{gpu.name}, compute capability {gpu.compute_capability}: {precision}"
    why = nvidia.without_kernels(gpu, cuda) if cuda else None
    return DoctorCheck.of(not why, "GPU", f"{found}; {why}" if why else found, nvidia.WITHOUT_CUDA_13)


def _fits(manifest: Mapping[str, Any], plan: Plan) -> str:
    assert plan.image  # of TensorRT-LLM
    check_target(manifest, gpu_target(plan.image, plan.gpu))
    return "built for this GPU and image"


def _memory(gpu: Gpu, plan: Plan, workspace: Workspace) -> DoctorCheck:
    """All models of a stack are on one GPU; with tp_size, it has its share of the engine."""
    found = "the driver does not say how much is free"
    if gpu.free is not None:
        found = f"{gpu.free / 1e9:.1f} of {(gpu.memory or 0) / 1e9:.1f} GB free"
    shape = MemoryShape.of(weights.parse_source(str(plan.settings["model"])), workspace)
    if plan.trtllm or shape is None:
        return DoctorCheck("GPU memory", "ok", f"{found}; what this model needs is not known beforehand")
    mib = plan.settings.get("kv_cache_memory_mib")
    smaller = SMALL_MODEL if shape.kind == "llama" else "a smaller --set model"
    try:
        sizes = memory_parts(shape, plan.served, plan.settings, gpu.free, gpu.memory)
    except ValueError as error:
        return DoctorCheck("GPU memory", "fail", str(error), f"a larger {CACHE}")
    needed = sum(sizes.values())
    parts = " + ".join(f"{part} {size / 1e9:.1f}" for part, size in sizes.items())
    needs = f"{found}; needed {needed / 1e9:.1f} GB ({parts})"
    if gpu.free is None:
        return DoctorCheck("GPU memory", "warn", needs, "see that the GPU has that much")
    *_, cache = sizes.values()
    if mib and gpu.free >= needed - cache:
        room = gpu.free - (needed - cache)
        fitting = int(room / float(plan.settings.get("kv_cache_free_gpu_mem_fraction", 1))) // CACHE_STEP
        if (fitting := fitting * (CACHE_STEP // 2**20)) >= CACHE_LEAST:
            smaller = f"{CACHE}={fitting}"
    return DoctorCheck.of(gpu.free >= needed, "GPU memory", needs, f"{smaller}, or free the GPU")


def _host_memory(plan: Plan, builds: bool, workspace: Workspace) -> DoctorCheck | None:
    """Weights pass through the machine's memory: all copies at the same time, or those of an engine's build."""
    copies = max(plan.served.copies, BUILD_COPIES * builds)
    shape = MemoryShape.of(weights.parse_source(str(plan.settings["model"])), workspace) if copies else None
    if shape is None:
        return None
    free, needed = available_memory(), copies * shape.weights
    found = f"{free / 1e9:.1f} GB free; loading takes about {needed / 1e9:.1f} GB"
    return DoctorCheck.of(free >= needed, "memory", found, "close other programs, or take a smaller model", "warn")


def _shm() -> DoctorCheck:
    """The container's /dev/shm lies in the machine's memory."""
    size = os.environ.get("LABS_SHM_SIZE") or GPU_SHM
    limit, free = _bytes(size), available_memory()
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
