"""Input tensors, as the running server wants them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from labkit.clients.base import ASK_S, connect
from labkit.errors import LabError


def tensor(name: str, value: Any, kind: type[Any]) -> Any:
    """An input of shape [1, n] for the n values given, or [1, 1] for the one value."""
    array = np.array([value if isinstance(value, list) else [value]], dtype=kind)
    filled = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    filled.set_data_from_numpy(array)
    return filled


def text_tensor(name: str, value: str, shape: Sequence[int] = (1, 1)) -> Any:
    """An input that holds one text."""
    filled = grpcclient.InferInput(name, list(shape), "BYTES")
    filled.set_data_from_numpy(np.array([value.encode()], dtype=np.object_).reshape(shape))
    return filled


def impossible_end_id(kind: type[Any]) -> Any:
    """An end id in which no answer ends: -1, in a type without signs its bits.

    It is in no vocabulary, and TensorRT-LLM takes it for "no end id" (``LlmRequest::validate`` refuses other ids that
    are in no vocabulary).
    """
    return np.array(-1).astype(kind)


@functools.cache
def kind_of(endpoint: str, model: str, name: str) -> type[Any]:
    """The numpy type of a model's input, as the running server says: releases of TensorRT-LLM differ in integers.

    Raises:
        LabError: the model has no such input, or it is a text.
    """
    with connect(endpoint) as client:
        datatypes = {item.name: item.datatype for item in client.get_model_metadata(model, client_timeout=ASK_S).inputs}
    if datatypes.get(name, "BYTES") == "BYTES":
        raise LabError(
            f"{model} has no input {name} of numbers", f"its inputs: {', '.join(datatypes)}", code="input-missing"
        )
    kind: type[Any] = triton_to_np_dtype(datatypes[name])
    return kind
