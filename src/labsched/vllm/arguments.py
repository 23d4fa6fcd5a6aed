"""vLLM's names of the scheduler's settings, and the labs' names of the same (docs/guide/vllm.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from labsched.errors import LabError
from labsched.kv_budget import NULL_BLOCKS
from labsched.recording import SchedulerSettings
from labsched.replay import WHERE

NAMES = {  # vLLM's arguments: the labs' settings that set them
    "max_num_seqs": "max_num_sequences",
    "max_num_batched_tokens": "max_num_tokens",
    "enable_chunked_prefill": "enable_chunked_context",
    "enable_prefix_caching": "enable_kv_cache_reuse",
    "scheduling_policy": "scheduling",
}
CACHE = "max_tokens_in_paged_kv_cache"
BLOCKS, SHARE = "num_gpu_blocks_override", "gpu_memory_utilization"  # vLLM's arguments that set CACHE


def labs_names(settings: SchedulerSettings, assignments: Mapping[str, str]) -> dict[str, str]:
    """The assignments under the labs' names, where vLLM's own were given for a recording of vLLM.

    Raises LabError: what such an argument comes to is not known.
    """
    if not settings.vllm:
        return dict(assignments)
    renamed = {}
    for name, value in assignments.items():
        if name in (BLOCKS, SHARE):
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


def _blocks(settings: SchedulerSettings, name: str, value: str) -> int:
    """The KV blocks, without the null block, that one of vLLM's arguments comes to."""
    known = settings.recorded
    try:
        if name == BLOCKS:
            return int(value) - NULL_BLOCKS
        more = (float(value) - float(known[SHARE])) * int(known["device_memory"])
        return settings.blocks + math.floor(more / int(known["block_bytes"]))
    except ValueError as error:
        raise LabError(f"{name}={value} cannot be predicted", str(error), WHERE, code="replay-refused") from error
    except (KeyError, ZeroDivisionError):
        why = "the recording does not say what memory its device has: on a CPU this setting means nothing"
        raise LabError(
            f"{name} cannot be predicted", why, f"--set {BLOCKS}={settings.blocks + 1}", code="replay-refused"
        ) from None
