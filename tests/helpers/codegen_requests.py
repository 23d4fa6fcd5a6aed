"""Requests to the four models of lab 04, as its clients make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

#: What every existing client sends, whatever the vocabulary.
USUAL: dict[str, Any] = {
    "runtime_top_k": 1,
    "runtime_top_p": 0.0,
    "beam_search_diversity_rate": 0.0,
    "temperature": 1.0,
    "len_penalty": -1.0,
    "repetition_penalty": 1.0,
    "random_seed": 0,
    "is_return_log_probs": True,
    "beam_width": 1,
    "start_id": 220,
    "end_id": 50256,
}
KINDS = {
    "runtime_top_k": ("UINT32", np.uint32),
    "runtime_top_p": ("FP32", np.float32),
    "beam_search_diversity_rate": ("FP32", np.float32),
    "temperature": ("FP32", np.float32),
    "len_penalty": ("FP32", np.float32),
    "repetition_penalty": ("FP32", np.float32),
    "random_seed": ("UINT64", np.uint64),
    "is_return_log_probs": ("BOOL", np.bool_),
    "beam_width": ("UINT32", np.uint32),
    "start_id": ("UINT32", np.uint32),
    "end_id": ("UINT32", np.uint32),
}


def tensor(kind: Any, name: str, datatype: str, array: np.ndarray[Any, Any]) -> Any:
    made = kind(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def texts(kind: Any, name: str, values: Sequence[str | bytes]) -> Any:
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    return tensor(kind, name, "BYTES", np.array(raw, dtype=np.object_)[:, None])


def options(kind: Any, rows: int, given: dict[str, Any]) -> list[Any]:
    """One column for each: one value for all rows, or one a row."""
    made = []
    for name, value in given.items():
        datatype, numpy_type = KINDS[name]
        column = value if isinstance(value, list) else [value] * rows
        made.append(tensor(kind, name, datatype, np.array(column, dtype=numpy_type)[:, None]))
    return made


def ensemble(
    prompts: Sequence[str | bytes],
    tokens: int | list[int],
    bad: str = "",
    stop: str = "",
    kind: Any = grpcclient.InferInput,
    **given: Any,
) -> list[Any]:
    """The inputs of `ensemble` for these prompts."""
    rows = len(prompts)
    lengths = tokens if isinstance(tokens, list) else [tokens] * rows
    return [
        texts(kind, "INPUT_0", prompts),
        tensor(kind, "INPUT_1", "UINT32", np.array(lengths, dtype=np.uint32)[:, None]),
        texts(kind, "INPUT_2", [bad] * rows),
        texts(kind, "INPUT_3", [stop] * rows),
        *options(kind, rows, given),
    ]


def generator(
    ids: Sequence[Sequence[int]], tokens: int, lengths: Sequence[int] | None = None, **given: Any
) -> list[Any]:
    """The inputs of the generator for rows of ids, filled up with 0."""
    width = max(map(len, ids))
    padded = np.array([[*row, *[0] * (width - len(row))] for row in ids], dtype=np.uint32)
    kind = grpcclient.InferInput
    true = [len(row) for row in ids] if lengths is None else lengths
    return [
        tensor(kind, "input_ids", "UINT32", padded),
        tensor(kind, "input_lengths", "UINT32", np.array(true, dtype=np.uint32)[:, None]),
        tensor(kind, "request_output_len", "UINT32", np.array([tokens] * len(ids), dtype=np.uint32)[:, None]),
        *options(kind, len(ids), given),
    ]
