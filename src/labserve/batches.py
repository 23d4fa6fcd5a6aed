"""Computing a batch of unequal members: so that none can fail another, and padded to one width."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
Result = TypeVar("Result")


def compute_together(
    batch: Sequence[Item], compute: Callable[[Sequence[Item]], Sequence[Result | Exception]]
) -> list[Result | Exception]:
    """The results of `compute` for a batch, one a member; if it fails, of each member alone: only the culprit fails.

    `compute` must be able to begin again.
    """
    try:
        return list(compute(batch)) if batch else []
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [result for member in batch for result in compute_together([member], compute)]


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
