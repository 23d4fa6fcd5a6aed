"""The checks of ``labctl doctor`` on a machine. Each takes a moment, changes nothing, and names its remedy."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from labctl.architecture import SUPPORTED, X86, architecture, container_platform
from labkit.errors import LabError

GLIBC = (2, 35)
DISK_NEEDED = 3e9  # bytes: tiny weights, one 124M model, one engine, with room to spare
SHM_NEEDED = 64e6
MORE_DISK = "free some space, or set LABS_CACHE to a folder on another disk"


@dataclass(frozen=True)
class DoctorCheck:
    """One row of the checklist. ``warn`` lets the labs run, ``fail`` does not."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""

    @classmethod
    def of(
        cls, good: bool, name: str, found: str, remedy: str, otherwise: Literal["warn", "fail"] = "fail"
    ) -> DoctorCheck:
        return cls(name, "ok", found) if good else cls(name, otherwise, found, remedy)


def machine_checks(cache: Path) -> list[DoctorCheck]:
    """The checks of this machine that have nothing to do with a runtime."""
    python, numpy = platform.python_version(), version("numpy")
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    numpy_1 = numpy.startswith("1.26.")
    found = numpy if numpy_1 else f"{numpy} (Triton's stub corrupts tensors beside numpy 2)"
    return [
        DoctorCheck.of(supported, "Python", python, "use Python 3.11 or 3.12"),
        *([_libc()] if platform.system() == "Linux" else []),
        DoctorCheck.of(numpy_1, "numpy", found, "make setup"),
        *([_shm()] if platform.system() == "Linux" else []),
        _disk(cache),
    ]


def from_error(
    name: str, ask: Callable[[], object], weight: Literal["warn", "fail"] = "fail", found: str = ""
) -> DoctorCheck:
    """A check that is ok unless ``ask`` raises LabError; it shows ``found``, or else the answer."""
    try:
        answer = ask()
        return DoctorCheck(name, "ok", found or str(answer))
    except LabError as error:
        return DoctorCheck(name, weight, ": ".join(filter(None, (error.what, error.why))), error.remedy)


def _libc() -> DoctorCheck:
    name, number = platform.libc_ver()
    new = False
    with contextlib.suppress(ValueError):
        new = name == "glibc" and tuple(map(int, number.split(".")[:2])) >= GLIBC
    remedy = "glibc 2.35 or newer (Debian 12, Ubuntu 22.04), or Docker"
    return DoctorCheck.of(new, "libc", f"{name} {number}".strip() or "unknown", remedy)


def _shm() -> DoctorCheck:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return DoctorCheck("/dev/shm", "fail", "missing", "mount a tmpfs there")
    free = shutil.disk_usage(folder).free
    return DoctorCheck.of(
        free >= SHM_NEEDED, "/dev/shm", f"{free / 1e6:,.0f} MB free", "mount -o remount,size=512m /dev/shm"
    )


def _disk(cache: Path) -> DoctorCheck:
    where = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(where).free
    if not os.access(where, os.W_OK):
        return DoctorCheck("disk", "fail", f"{where} cannot be written", "set LABS_CACHE to a folder of yours")
    return DoctorCheck.of(free >= DISK_NEEDED, "disk", f"{free / 1e9:.1f} GB free for {cache}", MORE_DISK, "warn")


WSL = "microsoft"  # in the name of the kernel's release, under both kinds of WSL
EMULATED = "labs 02 and 04 ran on ARM, in emulation only: please report what you see"
UNTRIED = "labctl itself works here; servers run in containers for {platform}, not tried on this system"
CONTAINERS = "start Docker (on a Mac: Docker Desktop, Colima or OrbStack), or use a Linux machine"


def system_check() -> DoctorCheck:
    """The system and its processor. WSL 2 is a Linux; WSL 1 has no kernel of its own, and runs no container."""
    system, release = f"{platform.system()} {platform.machine()}", platform.release()
    if platform.system() == "Linux" and WSL in release.lower():
        is_wsl_2 = "wsl2" in release.lower() or WSL in release  # WSL 1 writes it with a capital
        system += f" (WSL {2 if is_wsl_2 else 1})"
        if not is_wsl_2:
            return DoctorCheck(
                "system", "fail", system, "in PowerShell: wsl --set-version NAME 2 (wsl --list shows the names)"
            )
    if platform.system() == "Linux" and architecture() in SUPPORTED:
        return DoctorCheck("system", "ok", system if architecture() == X86 else f"{system}: {EMULATED}")
    return DoctorCheck("system", "warn", f"{system}: {UNTRIED.format(platform=container_platform())}", CONTAINERS)
