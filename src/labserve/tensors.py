"""Reading a request's tensors: one value, a number within bounds, lists of words as ids."""

from collections.abc import Callable
from typing import Any

from labserve.params import BadInput

Read = Callable[[str], Any]  # the numpy array of an input, None if it was not sent


def read_single(read: Read, name: str, default: Any) -> Any:
    """The single value of an input, `default` where it was not sent. Raises BadInput for several."""
    value = read(name)
    if value is None:
        return default
    if value.size != 1:
        raise BadInput(name, f"one value, please; this has {value.size}")
    return value.reshape(-1)[0]


def check_range(name: str, value: float, least: float, most: float) -> float:
    """`value` if it lies within the closed range. Raises BadInput, also for NaN."""
    if not least <= value <= most:
        raise BadInput(name, f"{value:g} is out of range; it must be from {least:g} to {most:g}")
    return value


def read_number(read: Read, name: str, default: float, least: float, most: float) -> float:
    """The single number of an input. Raises BadInput if it lies outside."""
    return check_range(name, float(read_single(read, name, default)), least, most)


def read_word_lists(tensor: Any) -> list[list[int]]:
    """Lists of ids out of a [2, n] tensor: the ids one after the other, and below them where each word ends."""
    if tensor is None or tensor.size == 0:
        return []
    ids, ends = tensor.reshape(2, -1).tolist()
    parts, start = [], 0
    for end in (min(end, len(ids)) for end in ends):  # an end beyond the row is the row's
        if end > start:
            parts.append(ids[start:end])
            start = end
    return parts
