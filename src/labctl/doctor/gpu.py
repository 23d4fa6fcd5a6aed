"""The gpu profile's requirements for a machine, before anything is built: driver, chip, toolkit, memory, disk, hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import psutil

from labbuild.protocol import GpuInfo
from labbuild.releases import Release
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

PLAIN_CUDA = 12  # of the plain image's own backends
GPU_SHM = "2g"  # as compose.gpu.yaml has it
SHM_NEEDED = 2**30
BUILD_FACTOR = 3  # weights, checkpoint and engine lie side by side while one is built
BUILD_COPIES = 2  # of the weights in the machine's memory at a time: read and converted, or converted and serialised
BF16, VLLM_CHIP = (8, 0), (7, 5)  # compute capabilities: with bf16, and the oldest that vLLM's wheel has kernels for
GRAPHS = 2 * 10**9  # bytes: the PyTorch backend's CUDA graphs and activations beside its weights and cache


def gpu_checks(plan: Plan | None, runtime: str, workspace: Workspace) -> list[DoctorCheck]:
    """One row for each check. Without a driver, the checks that need one are left out.

    Args:
        plan: what is to be served; None asks only for what every stack needs.
        runtime: ``compose`` or ``local``.
    """
    gpus: list[Gpu] = []

    def ask() -> str:
        gpus.extend(nvidia.gpus(plan.gpus if plan else ()))
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


def _computes(plan: Plan | None) -> tuple[Release | None, bool]:
    """What computes on the GPU: the release of an image, and whether PyTorch of the package index does."""
    if plan is None:
        return None, False
    if plan.release:
        return plan.release, False
    return None, not plan.stack.image_only


def driver(version: str, release: Release | None, pytorch: bool = False) -> DoctorCheck:
    """Whether the driver is new enough for what computes in the image: its own CUDA, or PyTorch's."""
    name = "NVIDIA driver"
    cuda = PLAIN_CUDA
    if pytorch:
        cuda = PACKAGES_CUDA
    elif release:
        cuda = int(release.cuda.partition(".")[0])
    if oldest := nvidia.too_old(version, cuda):
        return DoctorCheck(name, "fail", f"{version} (CUDA {cuda} needs {oldest} or newer)", "install a newer driver")
    if release and nvidia.numbers(version) < nvidia.numbers(release.driver):
        found = f"{version}; the image of {release.name} is made for CUDA {release.cuda}, driver {release.driver}"
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
        info = GpuInfo(first.name, first.compute_capability, first.driver, "", len(gpus))
        chip = f"{info.gpus} x {info.gpu_name}, compute capability {info.compute_capability}"
        for build in builds:
            yield from_error("GPU", partial(require, build.options, info), found=chip)
        if builds or plan.stack.copies:
            yield _memory(gpus, plan, builds, workspace)
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
    check_target(manifest, gpu_target(plan.image, plan.devices))
    return "built for this GPU and image"


def _memory(gpus: list[Gpu], plan: Plan, builds: list[Build], workspace: Workspace) -> DoctorCheck:
    """Compares with the GPU of the engine that has the least free memory; all other models are on the first GPU."""
    room = [gpu.free for gpu in gpus[: plan.ranks] if gpu.free is not None]
    free, whole = min(room, default=0), gpus[0].memory or 0
    found = f"{free / 1e9:.1f} of {whole / 1e9:.1f} GB free" if room else "the driver does not say how much is free"
    sizes = _memory_needed(plan, builds, workspace)
    if sizes is None:
        return DoctorCheck("GPU memory", "ok", f"{found}; what this model needs is not known beforehand")
    needed = sum(sizes.values())
    parts = " + ".join(f"{part} {size / 1e9:.1f}" for part, size in sizes.items())
    needs = f"{found}; needed {needed / 1e9:.1f} GB ({parts})"
    if not room:
        remedy = "see that the MIG slice, or the memory of this machine, has that much"
        return DoctorCheck("GPU memory", "warn", needs, remedy)
    smaller = [
        ("tp_size", "--set tp_size=2 over two GPUs"),
        ("quantization", "--set quantization=fp8"),
        ("kv_cache_memory_mib", "a smaller --set kv_cache_memory_mib"),
    ]
    ways = [*(way for key, way in smaller if key in plan.settings), "a smaller model, or free the GPU"]
    return DoctorCheck.of(free >= needed, "GPU memory", needs, ", ".join(ways))


def _memory_needed(plan: Plan, builds: list[Build], workspace: Workspace) -> dict[str, int] | None:
    """The bytes that each part of a stack takes on a GPU; None if a model's size is not known."""
    tokens, copies = int(plan.settings.get("max_tokens_in_paged_kv_cache") or 0), plan.stack.copies
    sizes: dict[str, int] = {}
    for build in builds:
        shape, options = MemoryShape.of(build.source, workspace), build.options
        if shape is None:
            return None
        least = tokens or options["max_input_len"] + options["max_output_len"]
        sizes["the engine and its smallest KV cache"] = shape.engine(options, least)
    if copies:
        shape = MemoryShape.of(weights.parse_source(str(plan.settings["model"])), workspace)
        if shape is None:
            return None
        sizes[f"{copies} model{'s' if copies > 1 else ''} of Hugging Face's library"] = shape.copies(copies)
        if plan.stack.llmapi is not None:
            sizes["the LLM API's KV cache and CUDA graphs"] = shape.kv_cache(tokens) + GRAPHS
        if "kv_cache_memory_mib" in plan.settings:
            size = int(plan.settings["kv_cache_memory_mib"]) * 2**20
            sizes[f"the KV cache of {tokens or size // shape.kv_cache(1):,} tokens"] = size
    return sizes


def _host_memory(plan: Plan, builds: bool, workspace: Workspace) -> DoctorCheck | None:
    """Weights pass through the machine's memory: all copies at the same time, or those of an engine's build."""
    copies = max(plan.stack.copies, BUILD_COPIES * builds)
    shape = MemoryShape.of(weights.parse_source(str(plan.settings["model"])), workspace) if copies else None
    if shape is None:
        return None
    free, needed = psutil.virtual_memory().available, copies * shape.weights()
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
    needed = BUILD_FACTOR * shape.weights() if shape else 0
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
