"""x W + b for a W that is read at every step: in which numbers it is kept, and in which order.

It is laid out once, as the processor wants to read it.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from labserve.processor import has_bf16

MANY = 64 * 2**20  # bytes of weights in fp32; fewer fit into the processor's cache, and half the bytes gain nothing
LARGE = 2**20  # bytes; a smaller W stays in the processor's cache from step to step, in whatever order
MULTIPLE, MOST = 8, 16  # rows that W is packed for in fp32; with more of them, arithmetic takes the time
MOST_FP16 = 64  # the same, for a W of half the bytes


class Linear:
    """A matrix W [in, out], which is how GPT-2's files have it, and a bias [out] or None.

    A step of decoding brings one row for each sequence: little to compute with each weight, so that reading W is what
    takes the time. `pack` lays it out in the order in which a product of so few rows reads it, block after block. The
    products are the same, added up in another order.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight: Tensor | None = weight
        self._bias = bias
        self._packed: Tensor | None = None
        self._half: torch.ScriptObject | None = None
        self.rows = 0  # at most, of a product that reads it packed

    def pack(self, rows: int, kept: torch.dtype = torch.float32) -> None:
        """Lay it out for products of up to `rows` rows. A small one, or one on a GPU, is left as it is.

        `kept` is the type that W was rounded to before: in fp16 it is packed as such.
        """
        weight = self._weight
        if weight is None or weight.device.type != "cpu" or weight.nbytes < LARGE:
            return
        if weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            # oneDNN has one order for any number of rows. W was converted from the file's fp32, and goes.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.T.contiguous(), rows)
            self._weight = None
        elif kept == torch.float16 and reads_fp16():
            # FBGEMM reads fp16, and multiplies in fp32. For many rows W is read in fp32.
            self.rows = MOST_FP16
            self._half = torch.ops.quantized.linear_prepack_fp16(weight.T.contiguous(), self._bias)
        elif weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
            # W is the file's own memory, and stays for other numbers of rows.
            self.rows = min(-(-rows // MULTIPLE) * MULTIPLE, MOST)
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.T.contiguous(), self.rows)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        rows = x.flatten(0, -2)
        if self._weight is None:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        elif self._half is not None and len(rows) <= self.rows:
            y = torch.ops.quantized.linear_dynamic_fp16(_whole(rows), self._half)[: len(rows)]
        elif self._packed is not None and 1 < len(rows) <= self.rows:
            y = self._few(rows)
        elif self._bias is None:
            y = rows @ self._weight
        else:  # one alone, or a prompt's many, are as fast with W as it is
            y = torch.addmm(self._bias, rows, self._weight)
        return y.view(*x.shape[:-1], -1)

    def _few(self, rows: Tensor) -> Tensor:
        """The product with the packed W, for exactly `self.rows` rows: missing rows are zeros.

        So a row's numbers are added in the same order whatever the other rows are.
        """
        count = len(rows)
        if count < self.rows:
            rows = pad(rows, (0, 0, 0, self.rows - count))
        y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return y[:count]


def _whole(rows: Tensor) -> Tensor:
    """The rows, and up to two of zeros: none is left to FBGEMM's kernels of one and two rows.

    FBGEMM cuts a product into kernels of at most 6 rows with AVX2 (src/PartitionAvx2.cc). Those of one and
    two add a row's numbers up in another order than the others.
    """
    short = 3 - len(rows) % 6
    return pad(rows, (0, 0, 0, short)) if short in (1, 2) else rows


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
        case "auto" if weights < MANY:
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
