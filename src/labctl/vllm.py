"""vLLM on a GPU: NVIDIA's ``tritonserver`` image with its vLLM backend, and vLLM's engine arguments in ``model.json``.

The arguments were read in vLLM 0.13.0 (vllm/engine/arg_utils.py), the model in vllm_backend r26.01 (src/model.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError

FILE = "vllm_model/1/model.json"
TOKENS = "kv_cache_tokens"  # not vLLM's: it counts its cache in blocks
NULL_BLOCKS = 1  # block 0 stands for "no block" (vllm/v1/core/block_pool.py)
ALWAYS = {
    "batch_scheduler_policy": ("max_utilization", "vLLM admits a prompt that fits, and preempts if memory runs out"),
    "decoupled_mode": ("true", "NVIDIA's vLLM backend is decoupled; each request says whether it streams"),
}
_TYPES: Mapping[str, type] = {
    "model": str,
    "dtype": str,
    "enforce_eager": bool,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "max_model_len": int,
    "enable_chunked_prefill": bool,
    "enable_prefix_caching": bool,
    "block_size": int,
    "num_gpu_blocks_override": int,
    "kv_cache_memory_bytes": int,
    "kv_cache_dtype": str,
    "gpu_memory_utilization": float,
    "scheduling_policy": str,
    "disable_log_stats": bool,
}


@dataclass(frozen=True)
class Image:
    """An image of NVIDIA's that serves vLLM: what is in it, and what it asks of the driver."""

    image: str
    name: str
    cuda: str
    driver: str


# By upstream's compatibility matrix. Newer images exist; this is the newest whose backend could be read at its tag.
IMAGE = Image("nvcr.io/nvidia/tritonserver:26.01-vllm-python-py3", "vLLM 0.13.0", "13.1", "590.48")


def arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is written to model.json; a value that is empty is left to vLLM.

    Args:
        values: vLLM's engine arguments, and ``kv_cache_tokens``: how many tokens its KV cache holds.

    Raises:
        LabError: names that it does not take and values of the wrong type, all of them.
    """
    found = {key: value for key, value in values.items() if value != ""}
    if tokens := found.pop(TOKENS, 0):
        found["num_gpu_blocks_override"] = -(-tokens // found["block_size"]) + NULL_BLOCKS
    problems = [
        f"{key}={value}: {'no argument that the labs give' if key not in _TYPES else f'not {_TYPES[key].__name__}'}"
        for key, value in found.items()
        if type(value) is not _TYPES.get(key)
    ]
    if problems:
        raise LabError("model.json cannot be written", "", "correct what is named above", details=problems)
    return found


def effective(settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What NVIDIA's backend does where it is not what the settings ask for: by setting, the words and the reason."""
    rows = {}
    for name, (value, reason) in ALWAYS.items():
        asked = str(settings.get(name, value)).lower()
        if asked != value:
            rows[name] = {"asked": asked, "effective": value, "reason": reason}
    return rows
