"""Rows of unequal length in one rectangle, for models that look only backwards."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pad(blocks: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Blocks of ids, each [rows, length], one below the other, filled up with 0 on the right.

    A causal model's logits at a position depend on nothing to its right, so what the fill gives is simply cut off.
    """
    rows = sum(len(block) for block in blocks)
    width = max(block.shape[1] for block in blocks)
    padded = np.zeros((rows, width), dtype=np.int64)
    top = 0
    for block in blocks:
        padded[top : top + len(block), : block.shape[1]] = block
        top += len(block)
    return padded


def split_padded(values: NDArray[np.float32], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
    """The inverse: of [rows, width, ...] the part of each block, given the blocks' (rows, length)."""
    parts, top = [], 0
    for rows, length in shapes:
        parts.append(values[top : top + rows, :length])
        top += rows
    return parts
