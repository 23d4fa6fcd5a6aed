"""The memory and the tokens of a KV cache, where no setting says how large it is."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from labsched.kv_budget import VLLM_OVERHEAD
from labserve.model_shape import ModelShape

CPU_MIB = 1024


class CacheRoom(NamedTuple):
    """The two upper bounds of a KV cache: as words of config.pbtxt have it, "" for no bound in tokens."""

    tokens: str
    memory: int  # bytes

    @classmethod
    def of(cls, word: Callable[[str], str], shape: ModelShape, batch: int, device: str) -> "CacheRoom":
        """From a configuration's words.

        Without ``kv_cache_memory_mib``, a GPU gives what is free beside the weights, and no more than ``batch`` of the
        model's longest sequences fill: a small model gets a small cache (doctor/gpu_memory.py counts alike).

        Args:
            device: "cpu" or "cuda:N".
        """
        bound, mib = word("max_tokens_in_paged_kv_cache"), word("kv_cache_memory_mib")
        if mib or device == "cpu":
            return cls(bound, int(mib or CPU_MIB) * 2**20)
        most = batch * shape.context
        weights = _weights_bytes(word("gpt_model_path")) // int(word("tp_size") or 1)  # a rank's share
        weights += _weights_bytes(word("draft_model")) if word("draft_model") else 0
        free = _free_bytes(device) - weights - VLLM_OVERHEAD
        return cls(str(min(most, int(bound or most))), max(0, free))


def _weights_bytes(folder: str) -> int:
    files = list(Path(folder).glob("*.safetensors")) or list(Path(folder).glob("*.bin"))
    return sum(file.stat().st_size for file in files)


def _free_bytes(device: str) -> int:
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free)
