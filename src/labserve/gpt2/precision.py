"""In which numbers a model computes."""

import torch

LARGE = 64 * 2**20  # bytes of weights in fp32; fewer are in the processor's cache, and half of them is no faster
WORDS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def dtype_of(word: str, device: str, weights: int) -> torch.dtype:
    """The type that the word of a configuration stands for.

    Args:
        word: "fp32"; "bf16", which is slow on a processor that has to imitate it; "auto": fp16 on a GPU, on a
            processor bf16 where it has that and the weights are many, else fp32.
        device: "cpu" or "cuda:N".
        weights: bytes of all weights in fp32.

    Raises:
        ValueError: it is none of these words.
    """
    if word in WORDS:
        return WORDS[word]
    if word != "auto":
        raise ValueError(f"precision: '{word}' is none of auto, {', '.join(WORDS)}")
    if device != "cpu":
        return torch.float16
    return torch.bfloat16 if weights >= LARGE and has_bf16() else torch.float32


def has_bf16() -> bool:
    """Whether this processor multiplies bf16 itself."""
    can = torch.cpu.get_capabilities()
    return bool(can.get("avx512_bf16") or can.get("amx_bf16"))
