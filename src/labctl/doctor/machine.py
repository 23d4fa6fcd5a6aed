"""What ``labctl doctor`` asks of a machine. Each check answers in a moment, changes nothing, and names its remedy."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit.errors import LabError

GLIBC = (2, 35)
DISK_NEEDED = 3e9  # bytes: tiny weights, one 124M model, one engine, with room to spare
SHM_NEEDED = 64e6


@dataclass(frozen=True)
class Check:
    """One row of the checklist. ``warn`` lets the labs run, ``fail`` does not."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def machine_checks(cache: Path) -> list[Check]:
    """The checks of this machine that have nothing to do with a runtime."""
    return [_python(), _system(), _libc(), _numpy(), _shm(), _disk(cache)]


def from_error(name: str, ask: Callable[[], str], weight: Literal["warn", "fail"] = "fail") -> Check:
    """A check whose answer is a text, or a LabError."""
    try:
        return Check(name, "ok", ask())
    except LabError as error:
        return Check(name, weight, ": ".join(filter(None, (error.what, error.why))), error.remedy)


def _python() -> Check:
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] < (3, 13):
        return Check("Python", "ok", version)
    return Check("Python", "fail", version, "use Python 3.11 or 3.12")


def _system() -> Check:
    found = f"{platform.system()} {platform.machine()}"
    if found == "Linux x86_64":
        return Check("system", "ok", found)
    return Check("system", "fail", found, "Linux x86_64, or a machine with Docker (see README, requirements)")


def _libc() -> Check:
    name, version = platform.libc_ver()
    found = f"{name} {version}".strip() or "unknown"
    with contextlib.suppress(ValueError):
        if name == "glibc" and tuple(map(int, version.split(".")[:2])) >= GLIBC:
            return Check("libc", "ok", found)
    return Check("libc", "fail", found, "glibc 2.35 or newer (Debian 12, Ubuntu 22.04), or Docker")


def _numpy() -> Check:
    version = importlib.metadata.version("numpy")
    if version.startswith("1.26."):
        return Check("numpy", "ok", version)
    return Check("numpy", "fail", f"{version} (Triton's stub corrupts tensors beside numpy 2)", "make setup")


def _shm() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("/dev/shm", "fail", "missing", "mount a tmpfs there")
    free = shutil.disk_usage(folder).free
    if free >= SHM_NEEDED:
        return Check("/dev/shm", "ok", f"{free / 1e6:,.0f} MB free")
    return Check("/dev/shm", "fail", f"{free / 1e6:,.0f} MB free", "mount -o remount,size=512m /dev/shm")


def _disk(cache: Path) -> Check:
    where = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(where).free
    found = f"{free / 1e9:.1f} GB free for {cache}"
    if not os.access(where, os.W_OK):
        return Check("disk", "fail", f"{where} cannot be written", "set LABS_CACHE to a folder of yours")
    if free >= DISK_NEEDED:
        return Check("disk", "ok", found)
    return Check("disk", "warn", found, "free some space, or set LABS_CACHE to a folder on another disk")


def has_failed(checks: Iterable[Check]) -> bool:
    return any(check.state == "fail" for check in checks)
