"""Triton's request over gRPC as a message, for clients that send it on a channel of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

#: Which field of its message holds a parameter.
_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


class Tensor:
    """An input, made as tritonclient's ``InferInput`` is made, but with a content that can be read.

    Attributes:
        content: as the wire has it (``raw_input_contents``).
    """

    def __init__(self, name: str, shape: Sequence[int], datatype: str) -> None:
        self.name, self.shape, self.datatype, self.content = name, shape, datatype, b""

    def set_data_from_numpy(self, array: Any) -> None:
        if self.datatype != "BYTES":
            self.content = array.tobytes()
            return
        texts = serialize_byte_tensor(array)
        self.content = texts.item() if texts.size else b""


def infer_request(
    model: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[str] = (),
    id: str = "",
    parameters: Mapping[str, bool | int | float | str] | None = None,
) -> Any:
    """A ``ModelInferRequest`` (the KServe v2 protocol).

    Args:
        outputs: the names of the outputs to return; empty for all.
    """
    request = service_pb2.ModelInferRequest(model_name=model, id=id)
    for tensor in inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.content)
    for name in outputs:
        request.outputs.add(name=name)
    for name, value in (parameters or {}).items():
        setattr(request.parameters[name], _FIELDS[type(value)], value)
    return request
