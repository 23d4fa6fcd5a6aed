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
from labsched.policy import gather_s
from labsched.recording import Recording, Settings
from labsched.replay import WHERE, Played, Replay, StepTime, changed_words
from labserve.model_shape import Shape
from labserve.vllm import settings as served

NAMES = {  # vLLM's arguments: the labs' settings that set them (docs/guide/vllm.md)
    "max_num_seqs": "max_num_sequences",
    "max_num_batched_tokens": "max_num_tokens",
    "enable_chunked_prefill": "enable_chunked_context",
    "enable_prefix_caching": "enable_kv_cache_reuse",
    "scheduling_policy": "scheduling",
}

CACHE = "max_tokens_in_paged_kv_cache"


def labs_names(settings: Settings, assignments: Mapping[str, str]) -> dict[str, str]:
    """The assignments under the labs' names, where vLLM's own were given for a recording of vLLM."""
    return {NAMES.get(name, name) if settings.vllm else name: value for name, value in assignments.items()}


def changed(settings: Settings, assignments: Mapping[str, str]) -> Settings:
    """As :func:`labsched.replay.changed`. Raises LabError also where vLLM would refuse the settings."""
    words = changed_words(settings, assignments)
    given = {**words, "block_size": str(settings.block_size)}
    if words[CACHE] == settings.words[CACHE]:
        given[CACHE] = str(settings.blocks * settings.block_size)
    if not words["max_num_tokens"]:  # the usual number is another on a GPU
        given["max_num_tokens"] = str(settings.step_tokens)
    shape = Shape(settings.vocabulary, settings.context, 1, head_dim=served.HEADS[0])
    try:
        made = served.Settings.of(lambda name: given.get(name, ""), shape)
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
        self, recording: Recording, settings: Settings, seconds: StepTime | None = None, in_flight: int = 0
    ) -> Played:
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


def _replay(recording: Recording, settings: Settings, seconds: StepTime | None, in_flight: int) -> Played:
    """In the process with vLLM."""
    from labserve.vllm.counting import counted

    words = {
        **settings.words,
        "block_size": str(settings.block_size),
        CACHE: str(settings.blocks * settings.block_size),
        "max_num_tokens": str(settings.step_tokens),
    }
    try:
        scheduler: Any = counted(lambda name: words.get(name, ""), settings.context, settings.vocabulary)
    except ValueError as error:
        raise LabError("vLLM refuses these settings", str(error), WHERE, code="settings-unpredictable") from error
    gather = gather_s(lambda name: words.get(name, ""))
    done = Replay(scheduler, recording.arrivals, seconds, in_flight, gather_s=gather)
    return Played(done.run(), done.arrived)
