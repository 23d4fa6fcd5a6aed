"""Sends a request as a client with some patience, and says what became of it."""

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from benchmarks.hostile.bytewise import answer
from benchmarks.hostile.messages import message
from benchmarks.hostile.sent import Sent

PATIENCE_S = 20.0
ANSWERED, REFUSED, CANCELLED, SILENCE, CLOSED = "answered", "refused", "cancelled", "no answer", "closed"
SERVICE = "/inference.GRPCInferenceService/"
COMPRESSION = {"": None, "gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
CHANNEL = (("grpc.max_reconnect_backoff_ms", 500), ("grpc.max_receive_message_length", -1))
Outcome = tuple[str, str]  # one of the five above, and the server's words where it refused


class Client:
    """One person's connections; of one thread. ``patience``: seconds without an answer that are silence."""

    def __init__(self, http: str, grpc_endpoint: str, patience: float = PATIENCE_S) -> None:
        self._ports, self._patience = {"http": http, "grpc": grpc_endpoint}, patience
        self._channel = grpc.insecure_channel(grpc_endpoint, options=CHANNEL)

    def send(self, sent: Sent) -> Outcome:
        if sent.protocol in ("http1", "h2"):
            return self._in_bytes(sent)
        return self._over_http(sent) if sent.protocol == "http" else self._over_grpc(sent)

    def close(self) -> None:
        self._channel.close()

    def _in_bytes(self, sent: Sent) -> Outcome:
        try:
            status, words = answer(sent, self._ports[sent.port], self._patience)
            answered = status == 200 and (sent.protocol == "http1" or words)  # an error of gRPC's has no body
            return (ANSWERED, "") if answered else (REFUSED, words)
        except TimeoutError:
            return (SILENCE, "") if sent.leave is None else (CANCELLED, "")
        except OSError as error:
            return CLOSED, str(error)

    def _over_http(self, sent: Sent) -> Outcome:
        connection = http.client.HTTPConnection(self._ports["http"], timeout=self._patience)
        try:
            _write(connection, sent)
            if sent.leave is not None and connection.sock:
                connection.sock.settimeout(sent.leave or 0.001)
            response = connection.getresponse()
            words = response.read().decode(errors="replace")
            told = response.getheader("grpc-status", "0")  # so Envoy refuses what says that it is gRPC
            failed = response.status != 200 or told != "0" or words.startswith('data: {"error"')
            return (REFUSED, words) if failed else (ANSWERED, "")
        except TimeoutError:
            return (SILENCE, "") if sent.leave is None else (CANCELLED, "")
        except (OSError, http.client.HTTPException) as error:
            return CLOSED, f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def _over_grpc(self, sent: Sent) -> Outcome:
        wire = [item if isinstance(item, bytes) else message(sent.model, item) for item in sent.messages]
        options: dict[str, Any] = {"timeout": self._patience, "compression": COMPRESSION[sent.compression]}
        heard, words = time.monotonic(), ""
        try:
            if sent.protocol == "grpc":
                self._channel.unary_unary(f"{SERVICE}ModelInfer")(wire[0], **options)
                return ANSWERED, ""
            parse = service_pb2.ModelStreamInferResponse.FromString
            stream = self._channel.stream_stream(f"{SERVICE}ModelStreamInfer", response_deserializer=parse)
            call = stream(iter(wire), **options)
            if sent.leave is not None:
                threading.Timer(sent.leave, call.cancel).start()
            for answer in call:
                heard, words = time.monotonic(), answer.error_message or words
            return (REFUSED, words) if words else (ANSWERED, "")
        except grpc.RpcError as error:
            code, details = error.code(), str(error.details())
            if code == grpc.StatusCode.CANCELLED and sent.leave is not None:
                return CANCELLED, ""
            if code == grpc.StatusCode.DEADLINE_EXCEEDED:
                speaking = sent.protocol == "stream" and time.monotonic() - heard < self._patience / 2
                return (CANCELLED, "") if speaking else (SILENCE, "")
            return (CLOSED if code == grpc.StatusCode.UNAVAILABLE else REFUSED), details


def _write(connection: http.client.HTTPConnection, sent: Sent) -> None:
    if not sent.chunked:
        connection.request(sent.method, sent.path, sent.body, dict(sent.headers))
        return
    connection.putrequest(sent.method, sent.path)
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    pieces = [sent.body[at : at + sent.chunked] for at in range(0, len(sent.body), sent.chunked)]
    for at in range(0, len(pieces), 1000):
        connection.send(b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces[at : at + 1000]))
    connection.send(b"0\r\n\r\n")
