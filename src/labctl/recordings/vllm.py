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
from labsched.policy import gather_s
from labsched.recording import Recording, SchedulerSettings
from labsched.replay import WHERE, Replay, ReplayResult, StepSeconds, changed_words
from labsched.vllm.arguments import BLOCKS, CACHE, NAMES
from labserve.model_shape import ModelShape
from labserve.vllm import settings as served


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
            size = int(renamed.get("block_size") or served.BLOCK_SIZE)
            renamed[CACHE] = str((int(blocks) - NULL_BLOCKS) * size)
        except ValueError as error:
            raise LabError(f"{BLOCKS}={blocks} is not a number", str(error), WHERE, code="settings-unusable") from error
    return renamed


def change_vllm_settings(settings: SchedulerSettings, assignments: Mapping[str, str]) -> SchedulerSettings:
    """As :func:`labsched.replay.change_settings`. Raises LabError also where vLLM would refuse the settings, or does
    more.
    """
    if settings.beyond:
        raise LabError(
            "this server cannot be replayed",
            f"it has {' and '.join(settings.beyond)}, and the replay has not",
            "labctl explain needs no replay",
            code="replay-refused",
        )
    words = changed_words(settings, assignments)
    given = {**words, "block_size": str(settings.block_size)}
    if words[CACHE] == settings.words[CACHE]:
        given[CACHE] = str(settings.blocks * settings.block_size)
    if not words["max_num_tokens"]:  # the usual number is another on a GPU
        given["max_num_tokens"] = str(settings.step_tokens)
    shape = ModelShape(settings.vocabulary, settings.context, 1, head_dim=served.HEADS[0])
    try:
        made = served.VllmSettings.of(lambda name: given.get(name, ""), shape)
    except ValueError as error:
        raise LabError(
            "these settings cannot be predicted", str(error), WHERE, code="settings-unpredictable"
        ) from error
    return replace(settings, words=words, blocks=made.kv.blocks, step_tokens=made.features.max_num_tokens)


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
        self, recording: Recording, settings: SchedulerSettings, seconds: StepSeconds | None = None, in_flight: int = 0
    ) -> ReplayResult:
        """As :func:`labsched.replay.replay`; ``seconds`` goes into another process."""
        try:
            return self._pool.submit(_replay, replace(recording, rows=[]), settings, seconds, in_flight).result()
        except BrokenProcessPool as error:
            raise LabError(
                "vLLM's scheduler could not be replayed", "its process has ended", code="replay-ended"
            ) from error


def _read_first(packages: str) -> None:
    """In the new process, before anything else is imported there."""
    sys.path.insert(0, packages)
    os.environ["PYTHONPATH"] = packages  # vLLM 0.26 inspects a model's class in a process of its own


def _replay(
    recording: Recording, settings: SchedulerSettings, seconds: StepSeconds | None, in_flight: int
) -> ReplayResult:
    """In the process with vLLM."""
    from labserve.vllm.counting import make_counted_vllm

    words = {
        **settings.words,
        "block_size": str(settings.block_size),
        CACHE: str(settings.blocks * settings.block_size),
        "max_num_tokens": str(settings.step_tokens),
    }
    try:
        scheduler: Any = make_counted_vllm(lambda name: words.get(name, ""), settings.context, settings.vocabulary)
    except ValueError as error:
        raise LabError("vLLM refuses these settings", str(error), WHERE, code="settings-unpredictable") from error
    gather = gather_s(lambda name: words.get(name, ""))
    done = Replay(scheduler, recording.arrivals, seconds, in_flight, gather_s=gather)
    return ReplayResult(done.run(), done.arrived)
