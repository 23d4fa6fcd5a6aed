"""What the NVIDIA driver says of this machine's GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.runtimes import processes
from labkit.errors import LabError

PATIENCE_S = 10
FIELDS = ("name", "compute_cap", "driver_version", "memory.total", "memory.free")
MIB = 2**20
MIG = "MIG-"  # how the UUID of a slice begins: a cluster may name one in CUDA_VISIBLE_DEVICES
# The oldest driver for programs of each CUDA, by its first number: newer ones of that number run on it too.
OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}
OLDEST_CHIP = {13: "7.5"}  # compute capability: PyTorch's builds for that CUDA have no kernels for older ones
OLDEST_CHIP_OF_LAYER = "7.0"  # of vLLM's build for CUDA 12, and of PyTorch 2.10 in it
# What is left without it.
WITHOUT_CUDA_13 = (
    "--profile cpu; or rm -r .venv, then make setup with LABS_TORCH_INDEX naming PyTorch's builds for CUDA 12, and "
    "--set engine=transformers"
)


@dataclass(frozen=True)
class Gpu:
    """One GPU. Its memory is in bytes; None for a MIG slice, and where chip and machine share it."""

    name: str
    compute_capability: str
    driver: str
    memory: int | None
    free: int | None


def gpus(wanted: str | None = None) -> list[Gpu]:
    """Return the GPU of this number or UUID, or all, at least one; of a MIG slice, only its kind of GPU is known."""
    sliced = wanted is not None and wanted.startswith(MIG)
    argv = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    if wanted and not sliced:
        argv.append(f"--id={wanted}")
    try:
        ended = processes.run_short(argv, Path("/"), PATIENCE_S)
    except FileNotFoundError:
        raise LabError(
            "there is no NVIDIA driver here",
            "nvidia-smi was not found",
            "install the driver, or use --profile cpu",
            code="nvidia-driver-missing",
        ) from None
    if ended is None:
        raise LabError(
            "the NVIDIA driver does not answer",
            f"nvidia-smi was silent for {PATIENCE_S} s",
            code="nvidia-driver-silent",
        )
    remedy = "check that nvidia-smi lists your GPU"
    if ended.code:
        why = next(iter((ended.out + ended.err).strip().splitlines()), f"exit status {ended.code}")
        raise LabError("the NVIDIA driver does not work", why, remedy, code="nvidia-driver-broken")
    listed = [_gpu(line) for line in ended.out.splitlines() if line.strip()]
    if not listed:
        raise LabError("the NVIDIA driver sees no GPU", "", remedy, code="gpu-missing")
    return [replace(listed[0], memory=None, free=None)] if sliced else listed


def gpus_of_server(named: str | None, ranks: int, replica: int | None = None) -> str | None:
    """The GPUs of a server, as ``CUDA_VISIBLE_DEVICES`` names them: each replica has its own. None leaves them open.

    Args:
        named: the GPUs that all servers may take, separated by commas; None means all of this machine.
        ranks: GPUs of each server.
        replica: its number, from 1; None for a stack's only server.

    Raises LabError: too few are left for it.
    """
    if not named and not replica:
        return None
    every = named.split(",") if named else [str(number) for number in range(len(gpus()))]
    first = (replica - 1) * ranks if replica else 0
    if len(own := every[first : first + ranks]) < ranks:
        raise LabError(
            f"replica {replica} has no GPU of its own" if replica else f"tp_size={ranks} needs {ranks} GPUs",
            f"there are {len(every)}, and each server takes {ranks}",
            "fewer replicas, a smaller tp_size, or more GPUs in --gpu",
            code="gpus-too-few",
        )
    return ",".join(own)


def _gpu(line: str) -> Gpu:
    try:
        name, capability, driver, total, free = (part.strip() for part in line.split(","))
        # Where chip and machine share it, and of a slice in a container, it says in words that it does not know.
        memory, left = (int(mib) * MIB if mib.isdecimal() else None for mib in (total, free))
        return Gpu(name, capability, driver, memory, left)
    except ValueError:
        raise LabError("the answer of nvidia-smi cannot be read", line, code="nvidia-answer-unreadable") from None


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare: "535.104.05" is (535, 104, 5)."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def loaded_driver(gpu: Gpu) -> str:
    """The version of libcuda that a process here loads: the driver's, or a newer one that LD_LIBRARY_PATH names.

    That is NVIDIA's forward compatibility, which GPUs for games do not have.
    """
    folders = "" if "GeForce" in gpu.name else os.environ.get("LD_LIBRARY_PATH", "")
    for folder in folders.split(":"):
        if folder and (library := Path(folder) / "libcuda.so.1").exists():
            return max(gpu.driver, library.resolve().name.removeprefix("libcuda.so."), key=numbers)
    return gpu.driver


def too_old(driver: str, cuda: int) -> str | None:
    """Say why a driver cannot run programs of that CUDA; None where it can."""
    oldest = OLDEST_DRIVER[cuda]
    return f"CUDA {cuda} needs {oldest} or newer" if numbers(driver) < numbers(oldest) else None


def takes_only_cuda_12(gpu: Gpu) -> bool:
    """Whether vLLM's build for CUDA 12 computes on a GPU, and that for CUDA 13 does not."""
    driver = loaded_driver(gpu)
    if too_old(driver, 12) or numbers(gpu.compute_capability) < numbers(OLDEST_CHIP_OF_LAYER):
        return False
    return bool(too_old(driver, 13) or without_kernels(gpu, 13))


def newer_driver(cuda: int) -> str:
    """What to do about a driver that is too old for that CUDA."""
    package = f"cuda-compat-{cuda}-0"
    return (
        f"install driver {OLDEST_DRIVER[cuda]} or newer; or, on a data-centre GPU, NVIDIA's package {package}, with "
        f"its folder in LD_LIBRARY_PATH; or --runtime local, which has a build for CUDA 12; or {WITHOUT_CUDA_13}"
    )


def without_kernels(gpu: Gpu, cuda: int) -> str | None:
    """Say why PyTorch's build for that CUDA computes nothing on a GPU; None where it does."""
    oldest = OLDEST_CHIP.get(cuda, "0")
    old = numbers(gpu.compute_capability) < numbers(oldest)
    return f"PyTorch for CUDA {cuda} needs compute capability {oldest}" if old else None


def require_cuda(gpu: Gpu, cuda: int) -> None:
    """Raises LabError for a driver or a chip on which nothing that is built for that CUDA computes."""
    if why := too_old(loaded_driver(gpu), cuda):
        what = f"the NVIDIA driver {gpu.driver} is too old"
        raise LabError(what, why, newer_driver(cuda), code="nvidia-driver-too-old")
    if why := without_kernels(gpu, cuda):
        what = f"{gpu.name} (compute capability {gpu.compute_capability}) is too old"
        raise LabError(what, why, WITHOUT_CUDA_13, code="gpu-too-old")
