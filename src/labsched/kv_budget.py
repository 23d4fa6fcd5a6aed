"""How much memory keys and values may take, in blocks of a paged cache."""

from dataclasses import dataclass

# Bytes that vLLM takes on a GPU beside weights and cache, for CUDA, graphs and activations. It took 63.5 GB on an H100
# with Llama-2 7B and 8,192 tokens a step; 13.5 GB were weights and 48.3 GB the cache.
VLLM_OVERHEAD = 17 * 10**8
CACHE_BYTES = {"auto": 2, "float32": 4, "fp8": 1}  # of a number in the KV cache
NULL_BLOCKS = 1  # vLLM's block 0 stands for "no block" (vllm/v1/core/block_pool.py: null_block)


def number_bytes(exact: bool, dtype: str) -> int:
    """The bytes of a number in the KV cache; "auto" is as the model computes."""
    return CACHE_BYTES["float32" if exact and dtype == "auto" else dtype]


@dataclass(frozen=True, slots=True)
class KVBudget:
    """``blocks`` blocks of ``block_size`` tokens each (vLLM: `KVCacheConfig`, vllm/v1/kv_cache_interface.py)."""

    blocks: int
    block_size: int

    def needed(self, tokens: int) -> int:
        """The blocks that a sequence of ``tokens`` tokens occupies."""
        return -(-tokens // self.block_size)

    def reserved(self, token_bytes: int, spare: int = NULL_BLOCKS) -> int:
        """The bytes that an engine takes for it, with so many blocks more than requests may fill."""
        return (self.blocks + spare) * self.block_size * token_bytes

    @property
    def tokens(self) -> int:
        """The most tokens that fit."""
        return self.blocks * self.block_size

    @classmethod
    def of(cls, max_tokens: str, fraction: str, memory: int, token_bytes: int, block_size: int) -> "KVBudget":
        """From the words of ``tensorrt_llm/config.pbtxt``; an empty one is not given.

        Args:
            max_tokens: ``max_tokens_in_paged_kv_cache``.
            fraction: ``kv_cache_free_gpu_mem_fraction`` of ``memory`` bytes; 0.9 if empty. The smaller of the
                two bounds holds.
            token_bytes: what keys and values of one token take.

        Raises:
            ValueError: a value is not a number or out of range, or not one block fits.
        """
        share = float(fraction) if fraction else 0.9
        if not 0.0 < share <= 1.0:
            raise ValueError(f"kv_cache_free_gpu_mem_fraction: {share:g} is not above 0 and at most 1")
        blocks = int(memory * share) // (token_bytes * block_size)
        if max_tokens:
            blocks = min(blocks, int(max_tokens) // block_size)
        if blocks < 1:
            raise ValueError(
                f"max_tokens_in_paged_kv_cache={max_tokens or 'not given'}, kv_cache_free_gpu_mem_fraction={share:g} "
                f"of {memory:,} bytes: not one block of {block_size} tokens ({token_bytes:,} bytes each) fits"
            )
        return cls(blocks, block_size)
