"""For `labctl status`: what is in force, and why where it is not what was asked for."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

FILE = "effective.json"  # in the stack's run folder


def note(run_dir: str, settings: Iterable[tuple[str, str, str, str]]) -> None:
    """Write the settings that a model has in force.

    Args:
        run_dir: the stack's writable run folder; "" for none.
        settings: (name, asked, in force, reason); the reason is "" if it is as asked.
    """
    if not run_dir:
        return
    said: Mapping[str, object] = {
        name: {"asked": asked, "effective": in_force, "reason": reason} for name, asked, in_force, reason in settings
    }
    path = Path(run_dir) / FILE
    temporary = path.with_suffix(".part")
    with suppress(OSError):  # a server serves also if it cannot write this file
        temporary.write_text(json.dumps(said), encoding="utf-8")
        temporary.replace(path)
