"""Traces in Mooncake's format: a JSON line per request, with hashes of the prompt's blocks of 512 tokens.

The format: "Mooncake: Trading More Storage for Less Computation" (FAST 2025), FAST25-release/traces in its repository.
Equal `hash_ids` mean equal prompts up to the end of that block.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from labkit import nofollow
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.predict.recording import HASH_BYTES, Arrival

BLOCK = 512  # tokens
SMALLER = 16  # the rule by which a trace is scaled to a laptop: every length over 16, at least 1


def read(path: Path) -> list[Arrival]:
    """The requests of a trace. Its times are milliseconds.

    Raises:
        LabError: it cannot be read, or a line is of another form.
    """
    arrivals: list[Arrival] = []
    try:
        with nofollow.reading(path) as stream:
            for number, text in enumerate(stream.read().splitlines(), 1):
                line = nofollow.json_object(text)
                at, prompt, limit = line["timestamp"] / 1e3, int(line["input_length"]), int(line["output_length"])
                if at < 0 or prompt < 1 or limit < 1:
                    raise ValueError(f"line {number} has a number below its least")
                prefixes = _prefixes([int(block) for block in line.get("hash_ids", ())], prompt, number)
                arrivals.append(Arrival(str(number), at, 0, prompt, limit, limit, "length", prefixes=prefixes))
    except (OSError, KeyError, TypeError, ValueError) as error:
        form = 'its lines have "timestamp", "input_length", "output_length" and "hash_ids"'
        raise LabError(f"{path} is not a Mooncake trace", str(error), form) from error
    if not arrivals:
        raise LabError(f"{path} is not a Mooncake trace", "it has no request", "name another file")
    first = min(arrival.at for arrival in arrivals)
    return sorted((replace(one, at=one.at - first) for one in arrivals), key=lambda one: one.at)


def write(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write requests as a trace; hashes become numbers from 0, in order of appearance."""
    numbers: dict[bytes, int] = {}
    lines = []
    for arrival in arrivals:
        size = BLOCK * HASH_BYTES
        prompt = arrival.prefixes[: arrival.prompt * HASH_BYTES]
        keys = [blake2b(prompt[: end + size]).digest() for end in range(0, len(prompt), size)]
        ids = [numbers.setdefault(key, len(numbers)) for key in keys]
        lines.append(
            {
                "timestamp": round(arrival.at * 1e3),
                "input_length": arrival.prompt,
                "output_length": arrival.made,
                "hash_ids": ids,
            }
        )
    atomic_write(path, "".join(json.dumps(line) + "\n" for line in lines))


def scaled(arrivals: Sequence[Arrival], factor: int = SMALLER) -> list[Arrival]:
    """The same requests, every length divided by ``factor``: rounded up for prompts, down to at least 1 for answers.

    Of the hashes every ``factor``-th stays, so that prompts share the same part of their beginnings. Times stay.
    """
    found = []
    for one in arrivals:
        prompt, limit = -(-one.prompt // factor), max(1, one.limit // factor)
        parts = [one.prefixes[n * HASH_BYTES : (n + 1) * HASH_BYTES] for n in range(factor - 1, one.prompt, factor)]
        kept = b"".join(parts)[: prompt * HASH_BYTES]
        found.append(replace(one, prompt=prompt, limit=limit, made=limit, prefixes=kept))
    return found


def _prefixes(blocks: Sequence[int], prompt: int, number: int) -> bytes:
    """A hash for each token of a prompt; past the trace's own blocks they are equal to no other request's."""
    found = bytearray()
    for place in range(prompt):
        known = place // BLOCK < len(blocks)
        key = f"{blocks[place // BLOCK]}" if known else f"request {number}"
        found += blake2b(f"{key} {place}".encode(), digest_size=HASH_BYTES).digest()
    return bytes(found)
