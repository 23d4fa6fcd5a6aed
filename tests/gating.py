"""Which of the longest tests are due: ``LABS_GATE=full`` asks for all, ``LABS_GATE=2/3`` for the second third."""

from __future__ import annotations

import os
import re
import zlib


def due(name: str, gate: str | None = None) -> bool:
    """Whether what has this name is due. The parts are the same on every machine, and each name is in one of them.

    Raises:
        ValueError: ``LABS_GATE`` is none of "", "full" and "K/N".
    """
    gate = os.environ.get("LABS_GATE", "") if gate is None else gate
    if gate in ("", "full"):
        return gate == "full"
    if not (found := re.fullmatch(r"([1-9]\d?)/([1-9]\d?)", gate)) or int(found[1]) > int(found[2]):
        raise ValueError(f'LABS_GATE is "full" or a part such as "2/3", not {gate!r}')
    return zlib.crc32(name.encode()) % int(found[2]) == int(found[1]) - 1
