"""One request as the judge sees it: its headers, then its body. Which listener it came through says how it is read.

No header says that: a stranger writes the headers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from labguard.grpc_messages import MessageStream
from labguard.models import Models
from labguard.routes import Rule, of_grpc, of_http
from labguard.rules import Refused, check_json
from labguard.sequences import Sequences

LARGE = 2**18  # bytes; judging more than that does not hold up the others
LENGTH, ENCODING, CONTENT = "inference-header-content-length", "content-encoding", "content-type"
GRPC = re.compile(r"application/grpc(\+proto)?")
MIXED = (
    "one stream serves models of one kind: '{}' is {}decoupled, and the models before it are {}; open another stream"
)


class HttpRequest:
    """A request on the HTTP listener. Envoy shows its body whole, bounded and decompressed."""

    def __init__(self, headers: Mapping[str, str], models: Models, sequences: Sequences) -> None:
        """Judge the headers.

        Raises:
            Refused
        """
        self._headers, self._sequences = headers, sequences
        self._rule, self._model = of_http(headers[":method"], headers[":path"])
        if headers.get(CONTENT, "").lower().startswith("application/grpc"):
            raise Refused("this port serves HTTP; gRPC has a port of its own", 415)
        if ENCODING in headers:  # of gzip alone nothing is left
            raise Refused(f"the guard takes bodies compressed with gzip alone, not with '{headers[ENCODING]}'")
        if LENGTH in headers and self._rule is not Rule.INFER:
            raise Refused("Inference-Header-Content-Length belongs to .../infer alone")

    async def pass_on(self, body: bytes, last: bool) -> bytes:
        """Judge the body and return it. Raises Refused."""
        if self._rule is Rule.NO_BODY:
            if body:
                raise Refused("this request must have no body")
            return body
        length = self._headers.get(LENGTH)
        if len(body) > LARGE:
            document = await asyncio.to_thread(check_json, body, length)
        else:
            document = check_json(body, length)
        if self._rule is Rule.INFER:
            await self._sequences.check_http(self._model, document)
        return body


class GrpcCall:
    """A call on the gRPC listener. Envoy shows its messages in pieces, as they come."""

    def __init__(self, headers: Mapping[str, str], models: Models, sequences: Sequences) -> None:
        """Judge the headers.

        Raises:
            Refused
        """
        if not GRPC.fullmatch(headers.get(CONTENT, "")) or headers[":method"] != "POST":
            raise Refused("this port serves gRPC: POST with content-type application/grpc", 415)
        for name in (LENGTH, ENCODING):
            if name in headers:
                raise Refused(f"a gRPC call must not have the header '{name}'")
        self._models, self._sequences = models, sequences
        self._rule = of_grpc(headers[":path"])
        self._messages = MessageStream(self._rule is not Rule.BOUNDED, headers.get("grpc-encoding", ""))
        self._decoupled: bool | None = None

    async def pass_on(self, piece: bytes, last: bool) -> bytes:
        """Judge the messages that have become whole, and return them. Raises Refused."""
        whole = self._messages.pass_on(piece, last)
        for request in self._messages.judged:
            await self._sequences.check_grpc(request)
            if self._rule is Rule.STREAM:
                await self._check_kind(request.model_name, request.model_version)
        return whole

    async def _check_kind(self, model: str, version: str) -> None:
        """Keep a stream to models of one kind. Triton writes the answers of both kinds at once, which ends it.

        A request for a model that Triton does not serve is answered as that of a model that is not decoupled.
        """
        decoupled = (await self._models.kind(model, version)).decoupled
        if self._decoupled not in (None, decoupled):
            raise Refused(MIXED.format(model, *(("", "not") if decoupled else ("not ", "decoupled"))))
        self._decoupled = decoupled
