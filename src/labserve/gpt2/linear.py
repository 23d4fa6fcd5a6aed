"""x W + b for a W that is read at every step: laid out once in the order in which the processor wants to read it."""

import torch
from torch import Tensor

LARGE = 2**20  # bytes; a smaller W stays in the processor's cache from step to step, in whatever order
FEW = range(2, 33)  # rows of x; one alone, and a prompt's many, are as fast with W as it is


class Linear:
    """A matrix W [in, out], which is how GPT-2's files have it, and a bias [out] or None.

    A step of decoding brings one row for each sequence: little to compute with each weight, so that reading W is what
    takes the time. In oneDNN's own order (blocks of columns, each stored as it is needed) a core reads it half as fast
    again, and twice as fast where W is the whole vocabulary. The products are the same, added up in another order.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight: Tensor | None = weight
        self._bias = bias
        self._packed: Tensor | None = None
        if weight.device.type == "cpu" and weight.nbytes >= LARGE and torch.backends.mkldnn.is_available():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.T.contiguous(), 8)
            if weight.dtype != torch.float32:  # a copy already, where in fp32 it is the file's and costs nothing
                self._weight = None

    @property
    def packed(self) -> bool:
        """Whether it is laid out anew."""
        return self._packed is not None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        rows = x.flatten(0, -2)
        if self._weight is None or (self._packed is not None and len(rows) in FEW):
            y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        elif self._bias is None:
            y = rows @ self._weight
        else:
            y = torch.addmm(self._bias, rows, self._weight)
        return y.view(*x.shape[:-1], -1)
