"""A gRPC request stream, message by message: whole, bounded, decompressed for the judge, passed on as it came."""

from __future__ import annotations

import zlib

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from labguard.rules import MAX_REQUEST, NO_CLASSIFICATION, Refused, check_shapes, too_large

PREFIX = 5  # one byte: compressed or not; four bytes: the length
WINDOW = {"gzip": 31, "deflate": 15}


class MessageStream:
    """Takes a request body in pieces of any size and gives back what may pass: whole messages that were judged.

    Args:
        parsed: each message is a ``ModelInferRequest`` and judged as one; else its size alone counts.
        encoding: of the header ``grpc-encoding``.
    """

    def __init__(self, parsed: bool, encoding: str) -> None:
        self._parsed = parsed
        self._encoding = encoding
        self._held = bytearray()
        self.judged: list[service_pb2.ModelInferRequest] = []  # by the last pass_on, for who knows more rules

    def pass_on(self, piece: bytes, last: bool) -> bytes:
        """Judge what has become whole, and return it.

        Raises:
            Refused: nothing of this message, and nothing after it, may reach Triton.
        """
        self._held += piece
        self.judged = []
        start = 0
        while len(self._held) >= start + PREFIX:
            length = int.from_bytes(self._held[start + 1 : start + PREFIX], "big")
            if length > MAX_REQUEST:
                raise too_large()
            end = start + PREFIX + length
            if len(self._held) < end:
                break
            if self._parsed:
                message = self._plain(self._held[start], bytes(self._held[start + PREFIX : end]))
                self.judged.append(check_message(message))
            start = end
        passed = bytes(self._held[:start])
        del self._held[:start]
        if last and self._held:
            raise Refused("the stream ends within a message")
        return passed

    def _plain(self, compressed: int, message: bytes) -> bytes:
        if not compressed:
            return message
        if self._encoding not in WINDOW:
            raise Refused(f"the guard takes no messages compressed with '{self._encoding}'")
        unpacking = zlib.decompressobj(WINDOW[self._encoding])
        try:
            plain = unpacking.decompress(message, MAX_REQUEST + 1)
        except zlib.error as error:
            raise Refused(f"the message is not {self._encoding}: {error}") from None
        if len(plain) > MAX_REQUEST:
            raise too_large()
        if not unpacking.eof or unpacking.unused_data:
            raise Refused(f"the message is not one piece of {self._encoding}")
        return plain


def check_message(message: bytes) -> service_pb2.ModelInferRequest:
    """Judge one ``ModelInferRequest``, and return it.

    Raises:
        Refused
    """
    try:
        request = service_pb2.ModelInferRequest.FromString(message)
    except DecodeError as error:
        raise Refused(f"the message is not a ModelInferRequest: {error}") from None
    if any("classification" in output.parameters for output in request.outputs):
        raise Refused(NO_CLASSIFICATION)
    inputs = ((given.name, given.shape, "shared_memory_region" in given.parameters) for given in request.inputs)
    check_shapes(inputs, len(message))
    return request
