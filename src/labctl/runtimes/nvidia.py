"""What the NVIDIA driver says of this machine's GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from labctl.runtimes import processes
from labkit.errors import LabError

PATIENCE_S = 10
FIELDS = ("name", "compute_cap", "driver_version", "memory.total", "memory.free")
MIB = 2**20
MIG = "MIG-"  # how the UUID of a slice begins: a cluster may name one in CUDA_VISIBLE_DEVICES
UNKNOWN = ("[N/A]", "N/A", "[Not Supported]")
# The oldest driver for programs of each CUDA, by its first number: newer ones of that number run on it too.
OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True)
class Gpu:
    """One GPU. Its memory is in bytes; None for a MIG slice, and where chip and machine share it."""

    name: str
    compute_capability: str
    driver: str
    memory: int | None
    free: int | None


def gpus(wanted: str = "") -> list[Gpu]:
    """The GPU of this number or UUID ("" is all), at least one; of a MIG slice, only its kind of GPU is known."""
    sliced = wanted.startswith(MIG)
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


def _gpu(line: str) -> Gpu:
    try:
        name, capability, driver, total, free = (part.strip() for part in line.split(","))
        memory, left = (None if mib in UNKNOWN else int(mib) * MIB for mib in (total, free))
        return Gpu(name, capability, driver, memory, left)
    except ValueError:
        raise LabError("the answer of nvidia-smi cannot be read", line, code="nvidia-answer-unreadable") from None


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare: "535.104.05" is (535, 104, 5)."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def too_old(driver: str, cuda: int) -> str:
    """The oldest driver that runs programs of that CUDA, where ``driver`` is older; "" where it is not."""
    oldest = OLDEST_DRIVER[cuda]
    return oldest if numbers(driver) < numbers(oldest) else ""
