"""A learner's ``admission.py`` at the gate. An exercise calls this file's function in a process of its own."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labsched import admission
from labsched.counted_time import Cost
from labsched.slo import Slo

FILE = "admission.py"


def decisions(
    folder: str, requests: Sequence[tuple[float, int, int]], cost: Sequence[float], slo: Sequence[float]
) -> Any:
    """The rounds of a play by the file in ``folder``, as JSON. An exercise calls this in a process of its own.

    With ``error``: what went wrong in the file, and in which line.
    """
    path = str(Path(folder) / FILE)
    gated = [admission.GatedRequest(*request) for request in requests]
    load = admission.AdmissionLoad(gated, Cost(*cost), Slo(*slo))
    try:
        result = admission.play_load(load, runpy.run_path(path)[admission.FUNCTION])
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f"{FILE}, line {lines[-1]}" if lines else FILE
        return {"error": f"{where}: {error if isinstance(error, ValueError) else repr(error)}"}
    return {"rounds": [[number, *decided] for number, decided in result.rounds.items()]}
