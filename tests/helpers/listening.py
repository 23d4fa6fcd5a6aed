"""Where the programs of a checkout listen."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import psutil

from labctl.runtimes import docker_engine


def listeners(root: Path) -> dict[str, set[str]]:
    """The addresses on which processes that work on this checkout listen, by the process's name."""
    found: dict[str, set[str]] = {}
    for process in psutil.process_iter(["name", "cmdline", "cwd"]):
        about = str(root) in " ".join(process.info["cmdline"] or ()) or str(process.info["cwd"]).startswith(str(root))
        if not about or process.pid == os.getpid():
            continue
        try:
            sockets = process.net_connections("tcp")
        except psutil.Error:  # it has just ended
            continue
        if places := {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}:
            found.setdefault(process.info["name"], set()).update(places)
    return found


def published(root: Path, stack: str) -> dict[str, set[str]]:
    """The addresses of this machine on which a stack's containers are published, by the container's name."""
    return {
        container.name: {
            place["HostIp"] for places in container.attrs["NetworkSettings"]["Ports"].values() for place in places or ()
        }
        for container in docker_engine.containers(str(root), stack)
    }


def beyond_loopback(places: dict[str, set[str]]) -> dict[str, list[str]]:
    """Those of the addresses that other machines may reach, by who listens there."""
    found = {name: sorted(one for one in addresses if not _is_loopback(one)) for name, addresses in places.items()}
    return {name: addresses for name, addresses in found.items() if addresses}


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
