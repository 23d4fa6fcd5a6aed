"""The system of this machine, as ``labctl doctor`` reports it: WSL, and systems that only run containers."""

from __future__ import annotations

import platform

from labctl.architecture import SUPPORTED, X86, architecture, container_platform
from labctl.doctor.machine import DoctorCheck

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
