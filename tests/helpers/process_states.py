"""What a process of a test has come to, at one look: it may end, or become another program, between two."""

from __future__ import annotations

from pathlib import Path

import psutil


def runs(pid: int, name: str) -> bool:
    """Whether it runs a program whose name begins so, and shows its environment: the kernel has that a little later."""
    place = Path(f"/proc/{pid}")
    return (place / "comm").read_text().startswith(name) and bool((place / "environ").read_bytes())


def ended(pid: int) -> bool:
    """Whether it is over, looked after by its parent or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
