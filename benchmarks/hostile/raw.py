"""Requests whose form is wrong: damaged bodies, false lengths, closed APIs, messages that are none."""

from __future__ import annotations

import gzip
import random

from benchmarks.hostile.models import Model
from benchmarks.hostile.sent import JSON, Sent, encoded, infer


def bodies(chance: random.Random, model: Model, kind: str) -> Sent:
    """A good body that was damaged, or none at all."""
    whole = encoded(model.good(chance.randint(1, 2**40)))
    cut = chance.randrange(len(whole))
    flipped = bytearray(whole)
    for _ in range(chance.randint(1, 8)):
        flipped[chance.randrange(len(flipped))] = chance.randrange(256)
    broken = (
        b"",
        b"{}",
        b"null",
        b"7",
        whole[:cut],
        bytes(flipped),
        whole + whole[:cut],
        b"[" * 50 + b"]" * 50,
        whole.replace(b'"inputs"', b'"inputs": [], "inputs"', 1),
        whole.decode().encode("utf-16"),
    )
    return infer(model, chance.choice(broken), kind)


def nesting(chance: random.Random, model: Model, kind: str) -> Sent:
    """JSON of 200,000 levels: Triton 2.51 parses it until its stack ends."""
    opening = chance.choice((b"[", b'{"a":', b'{"inputs":['))
    path = chance.choice((f"/v2/models/{model.name}/infer", f"/v2/models/{model.name}/generate"))
    return Sent(kind, model.name, path=path, headers=JSON, body=opening * 200_000, deadly=True)


def chunks(chance: random.Random, model: Model, kind: str) -> Sent:
    """A body in very many pieces."""
    return Sent(
        kind,
        model.name,
        path=f"/v2/models/{model.name}/infer",
        headers=JSON,
        body=b"[" * 500_000,
        chunked=1,
        deadly=True,
    )


def packed(chance: random.Random, model: Model, kind: str) -> Sent:
    """Compressed: well, badly, under a false name; one that unpacks to 64 MB keeps that much of Triton's memory."""
    whole = encoded(model.good(chance.randint(1, 2**40)))
    bomb = chance.random() < 0.1
    body = gzip.compress(b" " * 2**26 if bomb else whole)
    body = chance.choice((body, body[:-9], b"no gzip", body)) if not bomb else body
    name = "gzip" if bomb else chance.choice(("gzip", "gzip", "deflate", "br", "identity", "gzip, gzip"))
    headers = {**JSON, "Content-Encoding": name}
    return Sent(kind, model.name, path=f"/v2/models/{model.name}/infer", headers=headers, body=body, deadly=bomb)


def framing(chance: random.Random, model: Model, kind: str) -> Sent:
    """Tensors behind the JSON whose lengths are not true."""
    body = model.good(chance.randint(1, 2**40))
    tensor = chance.choice(body["inputs"])
    tensor.pop("data")
    raw = chance.choice((b"", b"\1\0\0\0A", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7fA", bytes(64)))
    tensor["parameters"] = {"binary_data_size": chance.choice((len(raw), 0, -1, 2**31, 2**63, "5", None, 3))}
    header = encoded(body)
    length = chance.choice((str(len(header)), str(len(header)), "0", "-1", "99999999999999999999", "x", "1e3", ""))
    headers = {**JSON, "Inference-Header-Content-Length": length}
    return Sent(kind, model.name, path=f"/v2/models/{model.name}/infer", headers=headers, body=header + raw)


def routes(chance: random.Random, model: Model, kind: str) -> Sent:
    """What is not there, and what is not for strangers."""
    method, path, body = chance.choice(
        (
            ("POST", "/v2/systemsharedmemory/region/x/register", {"key": "/labs-x", "offset": 0, "byte_size": 64}),
            ("POST", "/v2/cudasharedmemory/region/x/register", {"raw_handle": {"b64": "AAAA"}, "byte_size": 64}),
            ("GET", "/v2/systemsharedmemory/status", None),
            ("POST", "/v2/logging", {"log_file": "/tmp/x"}),
            ("POST", "/v2/trace/setting", {"trace_file": "/tmp/x"}),
            ("POST", "/v2/repository/index", {}),
            ("POST", f"/v2/repository/models/{model.name}/unload", {}),
            ("POST", "/v2/repository/models/x/load", {"parameters": {"config": "{}"}}),
            ("GET", f"/v2/models/{model.name}/versions/99", None),
            (
                "POST",
                f"/v2/models/{model.name}/versions/18446744073709551616/infer",
                model.good(chance.randint(1, 2**40)),
            ),
            ("GET", "/v2/models/../../etc/passwd", None),
            ("GET", "/" + "a" * 8000, None),
            ("DELETE", f"/v2/models/{model.name}", None),
            ("PUT", f"/v2/models/{model.name}/infer", model.good(chance.randint(1, 2**40))),
            ("GET", f"/v2/models/{model.name}/stats", None),
        )
    )
    return Sent(kind, model.name, method=method, path=path, headers=JSON, body=b"" if body is None else encoded(body))


def messages(chance: random.Random, model: Model, kind: str) -> Sent:
    """gRPC messages that are no messages, large ones, compressed ones."""
    wire = chance.choice(
        (
            b"",
            b"\xff" * 20,
            bytes(chance.randrange(256) for _ in range(60)),
            b"\x0a\xff\xff\xff\x7f",
            b"\0" * 2**20,
            model.good(chance.randint(1, 2**40)),
        )
    )
    return Sent(
        kind,
        model.name,
        chance.choice(("grpc", "stream")),
        messages=[wire],
        compression=chance.choice(("", "gzip", "deflate")),
    )
