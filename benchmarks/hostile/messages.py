"""Bodies of ``infer`` as gRPC messages. What a message cannot hold becomes the nearest thing that it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonclient.grpc import service_pb2

from benchmarks.hostile.models import WHOLE

FIELDS = {
    "BOOL": "bool_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
}
INT64 = 2**63 - 1


def message(model: str, body: Mapping[str, Any]) -> bytes:
    """The serialized ModelInferRequest."""
    made = service_pb2.ModelInferRequest(model_name=model)
    for name, value in (body.get("parameters") or {}).items():
        _parameter(made.parameters[_text(name)], value)
    for tensor in body["inputs"]:
        kind = str(tensor["datatype"])
        shape = [max(-INT64, min(int(n), INT64)) for n in tensor["shape"]]
        given = made.inputs.add(name=_text(tensor["name"]), datatype=kind, shape=shape)
        field = getattr(given.contents, _field(kind))
        for value in tensor["data"]:
            try:
                field.append(_text(value).encode() if kind == "BYTES" else value)
            except (TypeError, ValueError):
                field.append(0)
    for output in body.get("outputs", ()):
        wanted = made.outputs.add(name=_text(output["name"]))
        for name, value in output.get("parameters", {}).items():
            _parameter(wanted.parameters[name], value)
    return bytes(made.SerializeToString())


def _field(kind: str) -> str:
    return FIELDS.get(kind) or ("uint_contents" if kind.startswith("U") and kind in WHOLE else "int_contents")


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _parameter(field: Any, value: Any) -> None:
    if isinstance(value, bool):
        field.bool_param = value
    elif isinstance(value, int) and abs(value) <= INT64:
        field.int64_param = value
    elif isinstance(value, float):
        field.double_param = value
    else:
        field.string_param = _text(value)
