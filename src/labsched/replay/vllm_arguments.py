"""vLLM's names of the scheduler's settings, and the labs' names of the same (docs/guide/vllm.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from labsched.errors import LabError
from labsched.kv_budget import NULL_BLOCKS
from labsched.log.lines import WORDS
from labsched.log.settings import SchedulerSettings
from labsched.replay.player import WHERE

NAMES = {  # vLLM's arguments: the labs' settings that set them
    "max_num_seqs": "max_num_sequences",
    "max_num_batched_tokens": "max_num_tokens",
    "enable_chunked_prefill": "enable_chunked_context",
    "enable_prefix_caching": "enable_kv_cache_reuse",
    "scheduling_policy": "scheduling",
}
CACHE = "max_tokens_in_paged_kv_cache"
# vLLM's arguments that set CACHE, and the value of the last one that stores a number in one byte in the place of two
BLOCKS, SHARE, DTYPE, FP8 = "num_gpu_blocks_override", "gpu_memory_utilization", "kv_cache_dtype", "fp8"
TWO_BYTES = ("auto", "float16", "bfloat16")  # of kv_cache_dtype: "auto" is as the model computes


def labs_names(settings: SchedulerSettings, assignments: Mapping[str, str]) -> dict[str, str]:
    """The assignments under the labs' names, where vLLM's own were given for a recording of vLLM.

    Raises LabError: what such an argument comes to is not known.
    """
    if not settings.vllm:
        return dict(assignments)
    renamed = {}
    for name, value in assignments.items():
        if name in (BLOCKS, SHARE, DTYPE):
            renamed[CACHE] = str(_blocks(settings, name, value) * settings.block_size)
        else:
            renamed[NAMES.get(name, name)] = value
    return renamed


def their_names(settings: SchedulerSettings, assignments: Mapping[str, str]) -> dict[str, str]:
    """The assignments under vLLM's names, for a recording of vLLM; the same ones for another."""
    if not settings.vllm:
        return dict(assignments)
    theirs = {ours: name for name, ours in NAMES.items()}
    renamed = {}
    for name, value in assignments.items():
        if name == CACHE:
            renamed[BLOCKS] = str(int(value) // settings.block_size + NULL_BLOCKS)
        else:
            renamed[theirs.get(name, name)] = value
    return renamed


def own_arguments(settings: SchedulerSettings) -> dict[str, Any]:
    """The settings that vLLM alone has, by its names, as values."""
    found = {}
    for name, word in settings.words.items():
        if name not in (*WORDS, "block_size") and word:
            try:
                found[name] = json.loads(word)
            except ValueError:
                found[name] = word
    return found


def _blocks(settings: SchedulerSettings, name: str, value: str) -> int:
    """The KV blocks, without the null block, that one of vLLM's arguments comes to."""
    known = settings.recorded
    try:
        if name == BLOCKS:
            return int(value) - NULL_BLOCKS
        if name == DTYPE:
            if value != FP8 or known[DTYPE] not in TWO_BYTES:
                raise ValueError(f"the recorded one is {known[DTYPE]}: only {FP8} in the place of two bytes is known")
            return 2 * (settings.blocks + NULL_BLOCKS) - NULL_BLOCKS
        if not 0 < float(value) <= 1:
            raise ValueError("it is a share of the device's memory: more than 0, and at most 1")
        more = (float(value) - float(known[SHARE])) * int(known["device_memory"])
        return settings.blocks + math.floor(more / int(known["block_bytes"]))
    except ValueError as error:
        raise LabError(f"{name}={value} cannot be predicted", str(error), WHERE, code="replay-refused") from error
    except (KeyError, ZeroDivisionError):
        why = "the recording does not say what memory its device has: on a CPU this setting means nothing"
        raise LabError(
            f"{name} cannot be predicted", why, f"--set {BLOCKS}={settings.blocks + NULL_BLOCKS}", code="replay-refused"
        ) from None
