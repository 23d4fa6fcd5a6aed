"""The processor architecture that servers run on, by one name: what Linux calls aarch64 is Docker's arm64."""

from __future__ import annotations

import os
import platform

X86, ARM = "x86_64", "aarch64"
SUPPORTED = (X86, ARM)  # Triton's wheel and requirements/ have both
DOCKER = {X86: "amd64", ARM: "arm64"}
NAMES = {"amd64": X86, "x86-64": X86, "arm64": ARM, "armv8": ARM}


def architecture() -> str:
    """The name of this machine's architecture, as ``uname -m`` says it on Linux."""
    return canonical_architecture(platform.machine())


def canonical_architecture(machine: str) -> str:
    """One name for each architecture: "AMD64" is "x86_64", "arm64" is "aarch64"; an unknown one stays as it is."""
    machine = machine.lower()
    return NAMES.get(machine, machine)


def server_architecture() -> str:
    """The architecture that engines are made for: this machine's, or that of its containers.

    Only Linux runs servers outside containers. Elsewhere ``DOCKER_DEFAULT_PLATFORM`` may ask for emulated ones.
    """
    emulated = os.environ.get("DOCKER_DEFAULT_PLATFORM", "")
    if not emulated or platform.system() == "Linux":
        return architecture()
    machine = emulated.split("/")[1] if "/" in emulated else emulated  # "linux/arm64/v8"
    return canonical_architecture(machine)


def container_platform() -> str:
    """What Docker calls the platform of this machine's containers: "linux/amd64", "linux/arm64"."""
    machine = server_architecture()
    return f"linux/{DOCKER.get(machine, machine)}"
