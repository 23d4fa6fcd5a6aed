"""What the guard decides by on the HTTP port: lengths, content types, chunks, spellings of a route."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.hostile import http2
from benchmarks.hostile.models import Model
from benchmarks.hostile.sent import JSON, Sent, encoded

LENGTH = "Inference-Header-Content-Length"
SERVICE = "/inference.GRPCInferenceService/"
CONTENTS = (
    "application/grpc",
    "application/grpc+proto",
    "application/grpc+json",
    "application/grpc-web",
    "application/json",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/octet-stream",
    "",
    "Application/GRPC",
    "application/grpc;",
    " application/grpc",
)
LEAVE_S = 1.0  # after a request that is not whole, and whose rest never comes; a whole one is waited for
ODDITIES = (1, 1, 1, 1, 2, 3)  # in one request: where several are wrong, the first hides the others from the judge
NESTED = b"[" * 200_000
CODINGS = (
    "chunked",
    "chunked",
    "chunked",
    "Chunked",
    "xchunked",
    "identity",
    "gzip, chunked",
    "chunked, identity",
    "chunked\r\nTransfer-Encoding: chunked",
    "\tchunked",
    "chunked\r\nContent-Length: 2",
)
METHODS = ("GET", "post", "PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HEAD", "PRI", "X" * 300)
HEADERS = (
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk",
    "Expect: 100-continue",
    "Expect: x",
    "X_Y: z",
    "X: y\r\n folded",
    "Host: y",
    "X\0: y",
    f"X: {'y' * 70_000}",
    f"{LENGTH}: 0\r\n{LENGTH}: 1",
    "Content-Encoding: gzip\r\nContent-Encoding: gzip",
    "Connection: close, Content-Length",
)


def _deadly(chance: random.Random, model: Model) -> tuple[bytes, bool]:
    """A good body, or one of those that end Triton 2.51, and whether it is one of these."""
    good = model.good(chance.randint(2**32, 2**40))
    worst = {**good, "outputs": [{"name": out["name"], "parameters": {"classification": 1}} for out in model.outputs]}
    return chance.choice(((encoded(good), False), (encoded(good), False), (encoded(worst), True), (NESTED, True)))


def lengths(chance: random.Random, model: Model, kind: str) -> Sent:
    """A length of the JSON, true or not, on any route; only ``infer`` honours it."""
    body, deadly = _deadly(chance, model)
    at, size = f"/v2/models/{model.name}", len(body)
    posts = (
        f"{at}/infer",
        f"{at}/infer",
        f"{at}/versions/1/infer",
        f"{at}/generate",
        f"{at}/generate_stream",
        "/v2/repository/index",
        "/v2/logging",
    )
    method, path = chance.choice((*(("POST", path) for path in posts), ("GET", f"{at}/config"), ("GET", "/v2")))
    length = chance.choice(
        ("0", "0", "1", *[str(size)] * 3, str(size + 1), "00", "+0", "-0", "0x0", "0 0", "0,0", "1e1")
    )
    return Sent(kind, model.name, method=method, path=path, headers={**JSON, LENGTH: length}, body=body, deadly=deadly)


def contents(chance: random.Random, model: Model, kind: str) -> Sent:
    """The HTTP port with any content type, or that of the other port."""
    body, deadly = _deadly(chance, model)
    at = f"/v2/models/{model.name}"
    path = chance.choice((f"{at}/infer", f"{SERVICE}ModelInfer", f"{at}/generate"))
    headers = {"Content-Type": chance.choice(CONTENTS).strip() or "x", "TE": "trailers"}
    return Sent(kind, model.name, path=path, headers=headers, body=body, deadly=deadly)


def chunking(chance: random.Random, model: Model, kind: str) -> Sent:
    """HTTP/1 whose body has more than one end: two lengths, chunks and a length, odd chunks, pipelined requests."""
    body, deadly = _deadly(chance, model)
    size, half, end, whole = b"%x" % len(body), len(body) // 2, b"\r\n0\r\n\r\n", True
    if chance.random() < 0.5:
        coding = f"Transfer-Encoding: {chance.choice(CODINGS)}"
        endless = b"f" * 16 + b"\r\n" + body
        headers, sent = (
            coding,
            chance.choice(
                (
                    size + b"\r\n" + body + end,
                    b"0" + size + b"\r\n" + body + end,
                    b"0x" + size + b"\r\n" + body + end,
                    b"+" + size + b"\r\n" + body + end,
                    size + b" \r\n" + body + end,
                    size + b"\n" + body + b"\n0\n\n",
                    b"%x\r\n%s\r\n%x\r\n%s%s" % (half, body[:half], len(body) - half, body[half:], end),
                    size + b";x=y\r\n" + body + b"\r\n0\r\nX-Trailer: 1\r\n\r\n",
                    endless,
                    b"-1\r\n" + body,
                    size + b"\r\n" + body + b"XX0\r\n\r\n",
                    b"0\r\n\r\n" + body,
                )
            ),
        )
        whole = sent is not endless
    else:
        long = len(body)
        short = f"Content-Length: {long + 5}"
        headers, sent = chance.choice(
            (
                (f"Content-Length: {long}\r\nContent-Length: {long}", body),
                (f"Content-Length: {long}, {long}", body),
                (f"Content-Length: {long}\r\nContent-Length: 0", body),
                (f"Content-Length: +{long}", body),
                ("Content-Length: -1", body),
                (f"Content-Length : {long}", body),
                (short, body),
                ("Content-Length: 0", body),
                ("X: y", body),
                (f"Content-Length: {long}", body + b"POST /v2/logging HTTP/1.1\r\nHost: x\r\n\r\n"),
            )
        )
        whole = headers != short
    path = f"/v2/models/{model.name}/{chance.choice(('infer', 'infer', 'infer', 'generate'))}"
    return _http1(model, kind, f"POST {path}", headers, sent, deadly=deadly, leave=None if whole else LEAVE_S)


def spellings(chance: random.Random, model: Model, kind: str) -> Sent:
    """A route or a request line as nobody writes it; and the wrong protocol on either port."""
    body, deadly = _deadly(chance, model)
    at = f"/v2/models/{model.name}"
    path = chance.choice(
        (
            f"{at}/infer",
            f"{at}/generate",
            "/v2/logging",
            "/v2/trace/setting",
            "/v2/repository/index",
            "/v2/systemsharedmemory/status",
            "/v2/cudasharedmemory/status",
        )
    )
    if chance.random() < 0.05:
        sent = http2.call(pseudo(path, "POST"), [body])
        return Sent(kind, model.name, "h2", body=sent, deadly=deadly)
    wrong = chance.sample(("path", "method", "header", "port"), chance.choice(ODDITIES), counts=(8, 4, 4, 1))
    odd = chance.choice(
        (
            f"/{path}",
            f"/.{path}",
            f"/x/..{path}",
            path.replace("/v2", "/%762"),
            path.replace("/v2/", "/v2%2f"),
            path.replace("o", "%6f"),
            f"{path}/",
            f"{path};x",
            f"{path}?x=/../..",
            f"{path}%00",
            f"{path}#x",
            path.upper(),
            f"http://x{path}",
            path.replace("/v2", "/v2/\\..\\v2"),
            f"{path}%20",
            f"{path}\t",
            "*",
            "x:80",
        )
    )
    method = chance.choice(METHODS) if "method" in wrong else "POST"
    headers = f"Content-Length: {len(body)}\r\n{chance.choice(HEADERS) if 'header' in wrong else 'X: y'}"
    line, port = f"{method} {odd if 'path' in wrong else path}", "grpc" if "port" in wrong else "http"
    return _http1(model, kind, line, headers, body, port=port, deadly=deadly)


def pseudo(path: str, method: str) -> list[tuple[str, str]]:
    return [(":method", method), (":scheme", "http"), (":path", path), (":authority", "x")]


def _http1(model: Model, kind: str, line: str, headers: str, body: bytes, **more: Any) -> Sent:
    head = f"{line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}\r\n\r\n"
    return Sent(kind, model.name, "http1", body=head.encode("latin-1") + body, **more)
