"""What the guard decides by on the gRPC port: headers, frames and prefixes, the models of a stream, sequence ids."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.hostile import http2
from benchmarks.hostile.framing import CONTENTS, LEAVE_S, LENGTH, ODDITIES, SERVICE, pseudo
from benchmarks.hostile.messages import message
from benchmarks.hostile.models import Model
from benchmarks.hostile.sent import JSON, Sent, encoded

DEADLINE = ("grpc-timeout", "1n")  # over before Triton has taken the call, which may end it
ODD_HEADERS: Sequence[Sequence[tuple[str, str]]] = (
    ((LENGTH.lower(), "0"),),
    ((LENGTH, "0"),),
    (("content-encoding", "gzip"),),
    (("content-length", "3"),),
    (("grpc-encoding", "gzip"),),
    (("grpc-encoding", "identity"), ("grpc-encoding", "gzip")),
    (("grpc-encoding", "deflate"),),
    (("triton_grpc_error", "true"),),
    (("connection", "close"),),
    (("te", "gzip"),),
    (DEADLINE,),
    (("grpc-timeout", "x"),),
    ((":method", "POST"),),
    (("x", "y" * 9000),),
)


def calls(chance: random.Random, model: Model, kind: str) -> Sent:
    """The gRPC port with headers, frames and prefixes that no gRPC library sends."""
    good, worst = model.good(chance.randint(2**32, 2**40)), chance.random() < 0.4
    if worst:
        good["outputs"] = [{"name": out["name"], "parameters": {"classification": 1}} for out in model.outputs]
    paths = (
        f"{SERVICE}ModelStreamInfer",
        f"{SERVICE}LogSettings",
        f"{SERVICE}RepositoryIndex",
        f"{SERVICE}modelinfer",
        f"/{SERVICE}ModelInfer",
        f"{SERVICE}ModelInfer/",
        f"/v2/models/{model.name}/infer",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    )
    contents: Sequence[Sequence[str]] = ((), (chance.choice(CONTENTS),), ("application/grpc", "text/plain"))
    wrong = chance.sample(("path", "method", "content", "header", "frame"), chance.choice(ODDITIES))
    right = f"{SERVICE}{'ModelStreamInfer' if model.decoupled else 'ModelInfer'}"
    types = chance.choice(contents) if "content" in wrong else ("application/grpc",)
    headers = [
        *pseudo(
            chance.choice(paths) if "path" in wrong else right,
            chance.choice(("GET", "PUT")) if "method" in wrong else "POST",
        ),
        *(("content-type", content) for content in types),
        ("te", "trailers"),
        *(chance.choice(ODD_HEADERS) if "header" in wrong else ()),
    ]
    whole = message(model.name, good)
    framed = _framed(chance, whole) if "frame" in wrong else http2.message(whole)
    step = chance.choice((1, 7, http2.LARGEST, http2.LARGEST))
    pieces = [framed[at : at + step] for at in range(0, min(len(framed), 4000 * step), step)] or [b""]
    end = chance.random() < 0.9
    body = http2.call(headers, pieces, end=end)
    deadly = worst or DEADLINE in headers
    return Sent(kind, model.name, "h2", "grpc", body=body, deadly=deadly, leave=None if end else LEAVE_S)


def _framed(chance: random.Random, whole: bytes) -> bytes:
    """A message with a prefix that may not be true."""
    size = len(whole)
    return chance.choice(
        (
            http2.message(gzip.compress(whole), 1),
            http2.message(whole, 1),
            http2.message(whole, 2),
            http2.message(whole, 255),
            http2.message(whole, 0, size + 1),
            http2.message(whole, 0, max(size - 1, 0)),
            http2.message(whole, 0, 2**32 - 1),
            http2.message(whole) * 2,
            http2.message(whole) + b"\0",
            http2.message(b"") + http2.message(whole),
            whole,
        )
    )


def mixed(chance: random.Random, models: Sequence[Model], kind: str) -> Sent:
    """One stream with requests to several models, some of which fail; models of both kinds end Triton 2.51."""
    chosen = [chance.choice(models) for _ in range(chance.randint(2, 6))]
    wire, kinds = [], set()
    for model in chosen:
        body, known = model.good(chance.randint(2**32, 2**60)), chance.random() < 0.9
        if model.iterative:
            body["parameters"] = {}
        if chance.random() < 0.4:
            body["inputs"][0]["name"] = "nope"
        wire.append(message(model.name if known else "no-such", body))
        kinds.add(model.decoupled and known)
    both, names = len(kinds) > 1, ",".join(model.name for model in chosen)
    return Sent(kind, names, "stream", messages=wire, deadly=both, loses=both)


def ids(chance: random.Random, model: Model, kind: str) -> Sent:
    """Sequence ids of any length and type: one that is longer than the model's own type ends Triton 2.51."""
    given: Any = chance.choice(
        ("x" * 128, "x" * 129, "x" * 2**20, "\N{SNOWMAN}" * 43, 2**64 - 1, 2**64, 2**200, -1, 0.5, True, [], "", "\0")
    )
    body = model.good()
    body["parameters"] = {"sequence_id": given, "sequence_start": True, "sequence_end": not model.iterative}
    deadly = isinstance(given, str) and len(given) > 4
    if chance.random() < 0.5:
        return Sent(
            kind,
            model.name,
            path=f"/v2/models/{model.name}/infer",
            headers=JSON,
            body=encoded(body),
            deadly=deadly,
            loses=model.iterative,
        )
    return Sent(kind, model.name, "stream", messages=[body], deadly=deadly, loses=model.iterative)
