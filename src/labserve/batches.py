"""Computing a batch so that no member can fail another."""

from collections.abc import Callable, Sequence
from typing import TypeVar

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
