"""In which numbers a model computes, and in which ones its weights are kept."""

from typing import NamedTuple

import torch

from labserve.processor import has_bf16

LARGE = 64 * 2**20  # bytes of weights in fp32; fewer are in the processor's cache, and half of them is no faster


class Precision(NamedTuple):
    """The two types of a model's numbers."""

    weights: torch.dtype  # to which they are rounded
    arithmetic: torch.dtype  # of every product and sum


FP32 = Precision(torch.float32, torch.float32)
BF16 = Precision(torch.bfloat16, torch.bfloat16)
FP16 = Precision(torch.float16, torch.float16)
FP16_WEIGHTS = Precision(torch.float16, torch.float32)


def precision_of(word: str, device: str, weights: int) -> Precision:
    """What the word of a configuration stands for.

    Args:
        word: "fp32"; "bf16", which is slow on a processor that has to imitate it; "fp16", which on a processor are
            weights of half the bytes, made fp32 again where they are multiplied; "auto": fp16 on a GPU, on a processor
            bf16 where it has that and the weights are many, else fp16 where it reads that, else fp32.
        device: "cpu" or "cuda:N".
        weights: bytes of all weights in fp32.

    Raises:
        ValueError: it is none of these words, or this processor cannot do it.
    """
    gpu = device != "cpu"
    match word:
        case "fp32":
            return FP32
        case "bf16":
            return BF16
        case "fp16" if gpu:
            return FP16
        case "fp16" if reads_fp16():
            return FP16_WEIGHTS
        case "fp16":
            raise ValueError("precision: this processor does not read fp16 (it has no AVX2 or F16C); take fp32")
        case "auto" if gpu:
            return FP16
        case "auto" if weights < LARGE:
            return FP32
        case "auto":
            return BF16 if has_bf16() else FP16_WEIGHTS if reads_fp16() else FP32
    raise ValueError(f"precision: '{word}' is none of auto, fp32, bf16, fp16")


def reads_fp16() -> bool:
    """Whether this processor makes fp32 of fp16 as it reads it, which is what FBGEMM's products stand on."""
    return bool(torch.cpu.get_capabilities().get("f16c")) and "fbgemm" in torch.backends.quantized.supported_engines
