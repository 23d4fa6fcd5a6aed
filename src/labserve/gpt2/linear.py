"""x W + b for a W that is read at every step: laid out once in the order in which the processor wants to read it."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from labserve.gpt2.precision import reads_fp16

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
