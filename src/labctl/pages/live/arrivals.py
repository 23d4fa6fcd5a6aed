"""When the requests of a run were sent, as far as its clients have said: the page says how long each waited."""

from __future__ import annotations

import json
from pathlib import Path

from labkit import nofollow

Arrival = tuple[str, float]  # a request's name in the step log, and when it was sent


def arrivals(folder: Path, phase: str, shift: float) -> list[Arrival]:
    """The requests of one phase, from ``requests.jsonl``, in order of time; [] if the run has none.

    ``shift``: seconds to add to the clients' clock, which is the step log's.
    """
    try:
        records = [json.loads(line) for line in nofollow.read_text(folder / "requests.jsonl").splitlines()]
        sent = [(str(data["id"]), round(data["start"] + shift, 6)) for data in records if data["phase"] == phase]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return sorted(((name, at) for name, at in sent if name), key=lambda arrival: arrival[1])
