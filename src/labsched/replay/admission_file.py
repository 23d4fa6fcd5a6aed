"""A learner's ``admission.py`` at the gate. An exercise calls this file's function in a process of its own."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labsched.costs import StepCosts
from labsched.replay import admission
from labsched.replay.counted_time import counted_arrivals
from labsched.replay.slo import Slo

FILE = "admission.py"


def decisions(
    folder: str,
    requests: Sequence[tuple[int, int]],
    times: Sequence[float],
    cost: Mapping[str, float],
    slo: Sequence[float],
) -> Any:
    """Play a load by the file in ``folder``, and return the rounds of its decisions as JSON.

    With ``error``: what went wrong in the file, and in which line.

    Args:
        requests, times: as :func:`labsched.replay.counted_time.counted_arrivals` has them.
        cost: milliseconds, by the names of :class:`labsched.costs.StepCosts`.
        slo: the limits of TTFT and TPOT, in milliseconds.
    """
    path = str(Path(folder) / FILE)
    load = admission.AdmissionLoad(counted_arrivals(requests, times), StepCosts(**cost), Slo(*slo))
    try:
        played = admission.play_load(load, runpy.run_path(path)[admission.FUNCTION])
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f"{FILE}, line {lines[-1]}" if lines else FILE
        return {"error": f"{where}: {error if isinstance(error, ValueError) else repr(error)}"}
    return {"rounds": [[number, decision.round, decision.word] for number, decision in played.decisions.items()]}
