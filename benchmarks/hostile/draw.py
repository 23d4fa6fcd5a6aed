"""Draws requests, from good to deadly, from a source of chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from benchmarks.hostile import raw, tensors
from benchmarks.hostile.models import Model
from benchmarks.hostile.sent import Sent

Make = Callable[[random.Random, Model, str], Sent]
WEIGHTS: tuple[tuple[Make, int], ...] = (
    (tensors.good, 6), (tensors.inputs, 5), (tensors.values, 6), (tensors.types, 5), (tensors.shapes, 4),
    (tensors.outputs, 3), (tensors.classification, 1), (tensors.parameters, 5), (tensors.sequences, 5),
    (raw.bodies, 5), (raw.nesting, 1), (raw.chunks, 1), (raw.packed, 2), (raw.framing, 4), (raw.routes, 3),
    (raw.messages, 3),
)  # fmt: skip
MAKERS, TIMES = zip(*WEIGHTS, strict=True)


def draw(seed: str, models: Sequence[Model], deadly: bool, without: str = "") -> Sent:
    """The request of that seed: none of the kind ``without``, of those that end Triton 2.51 only if ``deadly``."""
    chance = random.Random(seed)
    while True:
        (make,) = chance.choices(MAKERS, TIMES)
        sent = make(chance, chance.choice(models), make.__name__)
        if sent.kind != without and (deadly or not sent.deadly):
            return sent


def killers(seed: str, models: Sequence[Model]) -> list[Sent]:
    """One of each kind that is known to end Triton 2.51."""
    chance = random.Random(seed)
    found: dict[str, Sent] = {}
    for make in MAKERS:
        for _ in range(200):
            sent = make(chance, chance.choice(models), make.__name__)
            if sent.deadly:
                found.setdefault(sent.kind, sent)
    return list(found.values())
