"""Which system this machine is, as ``labctl doctor`` says it: WSL, and systems that only run containers."""

from __future__ import annotations

import platform

from labctl.doctor.machine import Check

LOCAL = "Linux x86_64"  # what Triton's wheel and the locked packages are for
WSL = "microsoft"  # in the name of the kernel's release, under both kinds of WSL
UNTRIED = "labctl itself works here; a server needs containers, which nobody has tried on this system"
CONTAINERS = (
    "start Docker (on a Mac: Docker Desktop, Colima or OrbStack) and set DOCKER_DEFAULT_PLATFORM=linux/amd64: the "
    f"images are for {LOCAL}. Or use such a machine"
)


def system_check() -> Check:
    """The system and its processor. WSL 2 is a Linux; WSL 1 has no kernel of its own, and runs no container."""
    system, release = f"{platform.system()} {platform.machine()}", platform.release()
    if platform.system() == "Linux" and WSL in release.lower():
        second = "wsl2" in release.lower() or WSL in release  # WSL 1 writes it with a capital
        system += f" (WSL {2 if second else 1})"
        if not second:
            return Check(
                "system", "fail", system, "in PowerShell: wsl --set-version NAME 2 (wsl --list shows the names)"
            )
    if system.startswith(LOCAL):
        return Check("system", "ok", system)
    return Check("system", "warn", f"{system}: {UNTRIED}", CONTAINERS)
