"""Which requests are refused, and why. The rules look at what was parsed, never at its bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

MAX_REQUEST = 16 * 2**20  # bytes of an HTTP body or a gRPC message, decompressed
LISTENER = "x-labs-listener"  # by which Envoy tells the judge the listener: "http" or "grpc"
MAX_DEPTH = 100  # of nested JSON; Triton bounds it at the same since 2.58
NO_CLASSIFICATION = (
    "the guard refuses 'classification': on a text output it ends Triton before 2.60 (see docs/operate/security.md)"
)
Tensor = tuple[str, Sequence[Any], bool]  # name, shape, lies in shared memory


class Refused(Exception):
    """A request that must not reach Triton; the message goes to its sender.

    Attributes:
        status: the HTTP status that says so.
    """

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


def check_json(body: bytes, header_length: str | None) -> Any:
    """Judge the body of an HTTP request to Triton, and return its JSON; None where there is none.

    Args:
        body: whole and not compressed; empty where there is none.
        header_length: of the header ``Inference-Header-Content-Length``: so many bytes are JSON, tensors follow.

    Raises:
        Refused
    """
    if len(body) > MAX_REQUEST:
        raise too_large()
    text = body if header_length is None else body[: _length(header_length, len(body))]
    if not text.strip():
        return None
    try:
        document = json.loads(text.decode(), object_pairs_hook=_object)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # UnicodeDecodeError too
        raise Refused(f"the body is not JSON in UTF-8: {error}") from None
    _check_depth(document)
    if isinstance(document, dict):
        for output in _objects(document.get("outputs")):
            parameters = output.get("parameters")
            if isinstance(parameters, dict) and "classification" in parameters:
                raise Refused(NO_CLASSIFICATION)
        check_shapes(map(_tensor, _objects(document.get("inputs"))), len(body))
    return document


def check_shapes(inputs: Iterable[Tensor], size: int) -> None:
    """Refuse an input whose shape has more elements than the request has bytes: Triton before 2.59 makes room first.

    Raises:
        Refused
    """
    for name, shape, elsewhere in inputs:
        if not all(type(n) is int and 0 <= n < 2**31 for n in shape):
            raise Refused(f"input '{name}': every number of its shape must be a whole one from 0 to 2147483647")
        if not elsewhere and math.prod(shape) > size:
            raise Refused(f"input '{name}': shape {list(shape)} has more elements than the whole request has bytes")


def too_large() -> Refused:
    return Refused(f"the guard takes requests of up to {MAX_REQUEST:,} bytes, decompressed", 413)


def _length(text: str, size: int) -> int:
    """Strictly one decimal number: what one parser reads and another does not is a way past the judge."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= size):
        raise Refused(f"Inference-Header-Content-Length must be one number from 0 to {size}, the length of the body")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two members of one name the judge would see the last and Triton the first."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has two members of one name")
    return members


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(MAX_DEPTH):
        level = (
            [
                inner
                for outer in level
                for inner in (outer.values() if type(outer) is dict else outer)
                if type(inner) in (dict, list)
            ]
            if isinstance(document, dict | list)
            else []
        )
        if not level:
            return
    raise _too_deep()


def _too_deep() -> Refused:
    return Refused(f"the guard takes JSON of up to {MAX_DEPTH} levels")


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _tensor(given: dict[str, Any]) -> Tensor:
    parameters, shape = given.get("parameters"), given.get("shape")
    elsewhere = isinstance(parameters, dict) and "shared_memory_region" in parameters
    return str(given.get("name")), shape if isinstance(shape, list) else [], elsewhere
