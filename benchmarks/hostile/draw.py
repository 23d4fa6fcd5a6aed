"""Draws requests, from good to deadly, from a source of chance."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.hostile import framing, raw, streams, tensors
from benchmarks.hostile.models import Model
from benchmarks.hostile.sent import Sent

Make = Callable[[random.Random, Any, str], Sent]
WEIGHTS: tuple[tuple[Make, int], ...] = (
    (tensors.good, 6),
    (tensors.inputs, 5),
    (tensors.values, 6),
    (tensors.types, 5),
    (tensors.shapes, 4),
    (tensors.outputs, 3),
    (tensors.classification, 1),
    (tensors.parameters, 5),
    (tensors.sequences, 5),
    (raw.bodies, 5),
    (raw.nesting, 1),
    (raw.chunks, 1),
    (raw.packed, 2),
    (raw.framing, 4),
    (raw.routes, 3),
    (raw.messages, 3),
    (framing.lengths, 4),
    (framing.contents, 3),
    (framing.chunking, 5),
    (framing.spellings, 5),
    (streams.calls, 7),
    (streams.mixed, 5),
    (streams.ids, 2),
)
TO_SEVERAL = (streams.mixed,)  # models in one request
KILLERS: tuple[Make, ...] = (tensors.shapes, tensors.classification, raw.nesting, raw.chunks, raw.packed)
MAKERS, TIMES = zip(*WEIGHTS, strict=True)


def draw(seed: str, models: Sequence[Model], deadly: bool, losing: bool) -> Sent:
    """The request of that seed; only if asked for one of those that end Triton 2.51, or lose an answer there."""
    chance = random.Random(seed)
    while True:
        (make,) = chance.choices(MAKERS, TIMES)
        sent = make(chance, models if make in TO_SEVERAL else chance.choice(models), make.__name__)
        if (deadly or not sent.deadly) and (losing or not sent.loses):
            return sent


def killers(seed: str, models: Sequence[Model]) -> list[Sent]:
    """One of each kind that is known to end Triton 2.51, the surest of 200 draws."""
    chance = random.Random(seed)
    found = []
    for make in KILLERS:
        drawn = [make(chance, chance.choice(models), make.__name__) for _ in range(200)]
        deadly = sorted((sent for sent in drawn if sent.deadly), key=lambda sent: not _sure(sent, models))
        found += deadly[:1]
    return found


def _sure(sent: Sent, models: Sequence[Model]) -> bool:
    """Classification ends it on a text output alone; a shape of 2**31 elements it may still have room for."""
    said = sent.body.decode() if sent.body else json.dumps(list(sent.messages))
    if sent.kind == "shapes":
        return str(2**40) in said
    if sent.kind == "classification":
        texts = [out["name"] for m in models if m.name == sent.model for out in m.outputs if out["datatype"] == "BYTES"]
        return any(f'"{name}"' in said.partition('"outputs"')[2] for name in texts)
    return True
