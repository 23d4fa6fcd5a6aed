"""In which numbers a model computes, and in which ones its weights are kept."""

from typing import NamedTuple

import torch

from labserve.processor import has_bf16

LARGE = 64 * 2**20  # bytes of weights in fp32; fewer fit into the processor's cache, and half the bytes gain nothing


class Precision(NamedTuple):
    """The two types of a model's numbers."""

    weights: torch.dtype  # to which they are rounded
    arithmetic: torch.dtype  # of every product and sum


FP32 = Precision(torch.float32, torch.float32)
BF16 = Precision(torch.bfloat16, torch.bfloat16)
FP16 = Precision(torch.float16, torch.float16)
FP16_WEIGHTS = Precision(torch.float16, torch.float32)


def precision_of(word: str, device: str, weights: int) -> Precision:
    """The precision that a configuration's word stands for.

    Args:
        word: "fp32"; "bf16", which is slow on a processor that has to imitate it; "fp16", which on a processor are
            weights of half the bytes where it reads them, and rounded to fp16 anyway; "auto": fp16 on a GPU, else
            bf16 where the processor has that and the weights are many, else fp16 where it reads that, else fp32.
        device: "cpu" or "cuda:N".
        weights: bytes of all weights in fp32.

    Raises:
        ValueError: it is none of these words.
    """
    gpu = device != "cpu"
    match word:
        case "fp32":
            return FP32
        case "bf16":
            return BF16
        case "fp16" if gpu:
            return FP16
        case "fp16":
            return FP16_WEIGHTS
        case "auto" if gpu:
            return FP16
        case "auto" if weights < LARGE:
            return FP32
        case "auto":
            if has_bf16():
                return BF16
            return FP16_WEIGHTS if reads_fp16() else FP32
    raise ValueError(f"precision: '{word}' is not one of auto, fp32, bf16, fp16")


def shortfall(precision: Precision) -> str:
    """The features that this processor lacks for a precision, and what happens instead; "" if it lacks none."""
    if precision == BF16 and not has_bf16():
        return "this processor has no bf16 of its own and imitates it, slowly"
    if precision == FP16_WEIGHTS and not reads_fp16():
        return "this processor does not read fp16: the weights are rounded to it, and kept in fp32"
    return ""


def reads_fp16() -> bool:
    """Whether this processor makes fp32 of fp16 as it reads it (F16C, of x86), which is what FBGEMM's products need."""
    if not hasattr(torch.cpu, "get_capabilities"):  # PyTorch 2.9, which ARM has
        return False
    f16c = bool(torch.cpu.get_capabilities().get("f16c"))
    return f16c and "fbgemm" in torch.backends.quantized.supported_engines
