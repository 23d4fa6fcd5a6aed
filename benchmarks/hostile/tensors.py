"""Requests whose form is right and whose contents are not: tensors, parameters, sequences."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from benchmarks.hostile.models import Model
from benchmarks.hostile.sent import JSON, Sent, encoded, infer

NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 0.5, 1e308, 1e-300)
ODD: tuple[Any, ...] = (
    None,
    True,
    "",
    "x",
    "\u0000",
    "\ud800",
    "ℝ𝕖𝕒𝕝 \u202e",
    [],
    {},
    [[]],
    {"data": 1},
    "A" * 100_000,
)
TEXTS = (b"", b"\xff\xfe\x00", b"\0", "ℝ𝕖𝕒𝕝".encode(), b"A" * 200_000, b" " * 50, b"<script>", b"%s%n${7*7}")
NAMES = ("", "no-such", "../x", "a" * 10_000, "text_input", "START", "\u0000")
SECRETS = (
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "max_tokens",
    "ignore_eos",
    "temperature",
    "top_k",
    "binary_data_output",
    "triton_enable_empty_final_response",
    "x",
)


def _sent(chance: random.Random, model: Model, body: dict[str, Any], kind: str) -> Sent:
    """The body on any of the ways to the model."""
    way = chance.choice(("http", "http", "grpc", "stream", "stream", "generate"))
    leave = chance.choice((None, None, None, 0.0, 0.02)) if way in ("stream", "generate") else None
    if way == "http":
        return infer(model, body, kind)
    if way == "generate":
        flat = {item["name"]: (item["data"] or [None])[0] for item in body.get("inputs", ()) if _is_tensor(item)}
        flat |= body["parameters"] if isinstance(body.get("parameters"), dict) else {}
        path = f"/v2/models/{model.name}/{chance.choice(('generate', 'generate_stream'))}"
        return Sent(kind, model.name, path=path, headers=JSON, body=encoded(flat), leave=leave)
    count = chance.choice((1, 1, 2, 4)) if way == "stream" else 1
    return Sent(kind, model.name, way, messages=[_in_turn(body, number) for number in range(count)], leave=leave)


def _in_turn(body: dict[str, Any], number: int) -> dict[str, Any]:
    """The same for the next sequence, where it belongs to one."""
    given = body.get("parameters")
    if not isinstance(given, dict) or type(given.get("sequence_id")) is not int:
        return body
    return body | {"parameters": given | {"sequence_id": given["sequence_id"] + number}}


def _is_tensor(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("data"), list)


def good(chance: random.Random, model: Model, kind: str) -> Sent:
    """A request that each model answers."""
    return _sent(chance, model, model.good(chance.randint(1, 2**40)), kind)


def inputs(chance: random.Random, model: Model, kind: str) -> Sent:
    """A missing, doubled, renamed, surplus or swapped input."""
    body = model.good(chance.randint(1, 2**40))
    tensors = body["inputs"]
    victim = chance.randrange(len(tensors))
    what = chance.randrange(5)
    if what == 0:
        del tensors[victim]
    elif what == 1:
        tensors.append(tensors[victim])
    elif what == 2:
        tensors[victim]["name"] = chance.choice(NAMES)
    elif what == 3:
        spare = [given["name"] for given in model.inputs if given["name"] in model.optional] or ["no-such"]
        tensors[victim]["name"] = chance.choice(spare)
    else:
        tensors.append({"name": chance.choice(NAMES), "shape": [1], "datatype": "INT32", "data": [1]})
    return _sent(chance, model, body, kind)


def values(chance: random.Random, model: Model, kind: str) -> Sent:
    """Values that are odd for their type, in one input."""
    body = model.good(chance.randint(1, 2**40))
    tensor = chance.choice(body["inputs"])
    if tensor["datatype"] == "BYTES":
        text = chance.choice(TEXTS)
        tensor["data"] = [text.decode("utf-8", "replace") if chance.random() < 0.5 else text.decode("latin-1")]
    else:
        tensor["data"] = [chance.choice(NUMBERS)] * len(tensor["data"])
    return _sent(chance, model, body, kind)


def types(chance: random.Random, model: Model, kind: str) -> Sent:
    """A name, datatype, shape or data of another type than it should have."""
    body = model.good(chance.randint(1, 2**40))
    tensor = chance.choice(body["inputs"])
    where = chance.choice(("datatype", "data", "name", "shape", "parameters"))
    tensor[where] = chance.choice(("FP64", "INT32", "BOOL", "NOPE", "bytes") if where == "datatype" else ODD)
    return infer(model, body, kind)


def shapes(chance: random.Random, model: Model, kind: str) -> Sent:
    """Shapes that do not fit their data; those that Triton makes room for at once are deadly."""
    body = model.good(chance.randint(1, 2**40))
    tensor = chance.choice(body["inputs"])
    shape: list[Any] = chance.choice(
        ([0], [-1], [], [1], [2, 1], [1, 1, 1, 1], [3, 5], [1, 2**31], [2**40], [2**32, 2**32], [0.5], ["1"], [None])
    )
    tensor["shape"] = shape
    numbers = all(type(n) is int and n >= 0 for n in shape)
    deadly = numbers and math.prod(shape) >= 2**31
    return infer(model, body, kind, deadly=deadly and tensor["datatype"] != "BYTES")


def outputs(chance: random.Random, model: Model, kind: str) -> Sent:
    """Outputs that do not exist, twice, in shared memory, or of another form."""
    body = model.good(chance.randint(1, 2**40))
    name = chance.choice(model.outputs)["name"]
    wanted: Any = chance.choice(
        (
            [{"name": "no-such"}],
            [{"name": name}] * 2,
            [{"name": name, "parameters": {"shared_memory_region": "x"}}],
            [{"name": name, "parameters": {"binary_data": chance.choice(ODD)}}],
            "x",
            [None],
            [{}],
        )
    )
    body["outputs"] = wanted
    return infer(model, body, kind)


def classification(chance: random.Random, model: Model, kind: str) -> Sent:
    """Classification of an output: a text output ends Triton 2.51."""
    body = model.good(chance.randint(1, 2**40))
    chosen = chance.choice(model.outputs)
    body["outputs"] = [{"name": chosen["name"], "parameters": {"classification": chance.choice((1, 3, 2**31))}}]
    way = chance.choice(("http", "grpc", "stream"))
    if way == "http":
        return infer(model, body, kind, deadly=True)
    return Sent(kind, model.name, way, messages=[body], deadly=True)


def parameters(chance: random.Random, model: Model, kind: str) -> Sent:
    """Parameters of any name, type and size."""
    body = model.good(chance.randint(1, 2**40))
    named = {chance.choice(SECRETS): chance.choice((*NUMBERS, *ODD)) for _ in range(chance.randint(1, 3))}
    body["parameters"] = {**body.get("parameters", {}), **named}
    loses = model.iterative and any(name.startswith("sequence_") for name in named)
    return replace(_sent(chance, model, body, kind), loses=loses)


def sequences(chance: random.Random, model: Model, kind: str) -> Sent:
    """One id for many: started twice, never started, never ended, in one stream and in several."""
    body = model.good(chance.randint(1, 2**40))

    def step() -> dict[str, Any]:
        flags = {"sequence_start": chance.random() < 0.6, "sequence_end": chance.random() < 0.4}
        return {**body, "parameters": {"sequence_id": chance.choice((0, 1, 2, 3, "one")), **flags}}

    messages = [step() for _ in range(chance.randint(1, 6))]
    leave = chance.choice((None, None, 0.0, 0.05))
    return Sent(kind, model.name, "stream", messages=messages, leave=leave, loses=model.iterative)
