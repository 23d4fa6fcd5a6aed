"""Recordings of ``engine=vllm``: vLLM's own scheduler in virtual time, in a process whose Python finds vLLM."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labsched.kv_budget import NULL_BLOCKS
from labsched.log.settings import SchedulerSettings
from labsched.replay.player import WHERE, ReplayResult, StepSeconds
from labsched.replay.recording import Recording
from labsched.replay.vllm_arguments import BLOCKS, CACHE, NAMES
from labsched.replay.vllm_scheduler import replay_vllm
from labserve.vllm.settings import BLOCK_SIZE


def stack_names(assignments: Mapping[str, str]) -> dict[str, str]:
    """The assignments for a stack under the labs' names. vLLM's names are accepted with ``engine=vllm``.

    Raises LabError: the number of blocks is not a number.
    """
    if assignments.get("engine") != "vllm":
        return dict(assignments)
    ours = {**NAMES, "tensor_parallel_size": "tp_size"}
    renamed = {ours.get(name, name): value for name, value in assignments.items()}
    if blocks := renamed.pop(BLOCKS, ""):
        try:
            size = int(renamed.get("block_size") or BLOCK_SIZE)
            renamed[CACHE] = str((int(blocks) - NULL_BLOCKS) * size)
        except ValueError as error:
            raise LabError(f"{BLOCKS}={blocks} is not a number", str(error), WHERE, code="settings-unusable") from error
    return renamed


class VllmReplays:
    """Replays of recordings of vLLM, one after the other in one process. Closed by ``with``.

    Args:
        packages: the folder of vLLM and what it needs, which that process reads first.
    """

    def __init__(self, packages: Path) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, initializer=_read_first, initargs=(str(packages),))

    def __enter__(self) -> VllmReplays:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def replay(
        self,
        recording: Recording,
        settings: SchedulerSettings,
        seconds: StepSeconds | None = None,
        in_flight: int | None = None,
        seen: Any = None,
    ) -> ReplayResult:
        """As :func:`labsched.replay.player.replay`; ``seconds`` goes into another process, ``seen`` there and back."""
        try:
            asked = replace(recording, steps=[]), settings, seconds, in_flight, seen
            done, seen_there = self._pool.submit(_replayed, *asked).result()
            if seen:
                vars(seen).update(vars(seen_there))
            return done
        except BrokenProcessPool as error:
            raise LabError(
                "vLLM's scheduler could not be replayed", "its process has ended", code="replay-ended"
            ) from error


def _replayed(*asked: Any) -> tuple[ReplayResult, Any]:
    """In that process: a replay, and what has seen its steps."""
    return replay_vllm(*asked), asked[-1]


def _read_first(packages: str) -> None:
    """In the new process, before anything else is imported there."""
    sys.path.insert(0, packages)
    os.environ["PYTHONPATH"] = packages  # vLLM 0.26 inspects a model's class in a process of its own
