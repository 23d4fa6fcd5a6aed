"""What the NVIDIA driver says of this machine's GPUs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from labctl.errors import LabError
from labctl.runtimes import processes

PATIENCE_S = 10
FIELDS = ("name", "compute_cap", "driver_version", "memory.total", "memory.free")
MIB = 2**20
# The oldest driver for programs of each CUDA, by its first number: newer ones of that number run on it too.
OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``compute_capability`` as in "9.0"; memory in bytes."""

    name: str
    compute_capability: str
    driver: str
    memory: int
    free: int


def gpus() -> list[Gpu]:
    """Every GPU that the driver knows, at least one.

    Raises:
        LabError: there is no driver, it does not answer, or it has no GPU.
    """
    argv = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = processes.ask(argv, PATIENCE_S)
    except FileNotFoundError:
        raise LabError(
            "there is no NVIDIA driver here",
            "nvidia-smi was not found",
            "install the driver, or use --profile cpu",
        ) from None
    except subprocess.TimeoutExpired:
        raise LabError("the NVIDIA driver does not answer", f"nvidia-smi was silent for {PATIENCE_S} s") from None
    said = (done.stdout + done.stderr).strip()
    if done.returncode:
        why = said.splitlines()[0] if said else f"exit status {done.returncode}"
        raise LabError("the NVIDIA driver does not work", why, "check that nvidia-smi lists your GPU")
    listed = [_gpu(line) for line in done.stdout.splitlines() if line.strip()]
    if not listed:
        raise LabError("the NVIDIA driver sees no GPU", "", "check that nvidia-smi lists your GPU")
    return listed


def _gpu(line: str) -> Gpu:
    try:
        name, capability, driver, total, free = (part.strip() for part in line.split(","))
        return Gpu(name, capability, driver, int(total) * MIB, int(free) * MIB)
    except ValueError:
        raise LabError("the answer of nvidia-smi cannot be read", line) from None


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare: "535.104.05" is (535, 104, 5)."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def too_old(driver: str, cuda: int) -> str:
    """The oldest driver that runs programs of that CUDA, where ``driver`` is older; "" where it is not."""
    oldest = OLDEST_DRIVER[cuda]
    return oldest if numbers(driver) < numbers(oldest) else ""
