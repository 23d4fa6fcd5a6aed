"""For `labctl status`: what is in force, and why where it is not what was asked for."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from labsched.features import InForce

FILE = "effective.json"  # in the stack's run folder


def note(run_dir: str, settings: Iterable[InForce]) -> None:
    """Write the settings that a model has in force.

    Args:
        run_dir: the stack's writable run folder; "" for none.
    """
    if not run_dir:
        return
    by_name = {
        setting.name: {"asked": setting.asked, "effective": setting.effective, "reason": setting.reason}
        for setting in settings
    }
    path = Path(run_dir) / FILE
    temporary = path.with_suffix(".part")
    with suppress(OSError):  # a server serves also if it cannot write this file
        temporary.write_text(json.dumps(by_name), encoding="utf-8")
        temporary.replace(path)
