"""A run that is over: its step logs as one recording, and ``timeline.html``, which holds it and needs nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labctl.pages.live.feed import Feed
from labctl.pages.live.lines import read
from labctl.pages.live.packing import Packing
from labctl.pages.live.page import document
from labctl.pages.live.routes import RouteEvent, Routes
from labkit import nofollow
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.names import Names

NAME = "timeline.html"
BETWEEN_S = 0.5  # from the end of a phase to the next one, which had a server of its own
MOST = 200_000  # steps in one file
NO_TEXTS = "texts were not recorded: labctl run --texts records them"
Arrival = tuple[str, float]  # a request's name in the step log, and when it was sent


def recording(folder: Path) -> dict[str, Any]:
    """What the page takes of a run's folder: every step of every phase, warm-up left out.

    Raises LabError: the run has left no step log.
    """
    feed, packing, lines, sent = Feed(), Packing(), 0, list[Arrival]()
    phases = dict[str, list[Any]]()  # title, when the first request of the phase arrived, lanes
    router, routes, shift, end = Routes(), list[RouteEvent](), 0.0, 0.0
    logs = sorted(folder.glob("steps-*.jsonl"), key=_began)
    for path in logs:
        phase = path.stem.removeprefix("steps-")
        named = [phase] if len(logs) > 1 else []
        first = True
        for line in read(path):
            if lines == MOST:
                break
            if first:
                shift, first = end + BETWEEN_S - (line["t"] - line["dur"]), False
                arrived = arrivals(folder, phase, shift)
                feed.names = Names(id for id, _ in arrived)  # so the same request of two phases has the same name
                sent += arrived
                began = [at for _, at in arrived] + [line["t"] - line["dur"] + shift]
                phases[phase] = [phase if named else "", round(min(began), 6), []]
            end = line["t"] + shift
            lines += 1
            whose = [*named, f"replica {line['replica']}"] if "replica" in line else named
            model = f"{line['model']} ({', '.join(whose)})" if whose else line["model"]
            line |= {"t": round(end, 6), "model": model}
            routes += router.events([line])
            for event in feed.events([line]):
                packing.take(event)
                if event.get("k") != "model" and event["m"] not in phases[phase][2]:
                    phases[phase][2].append(event["m"])
    if not lines:
        raise LabError(
            f"{folder} has no step that can be shown", "", "labctl run leaves steps-*.jsonl there", code="steps-none"
        )
    title = _title(folder)
    head = {"title": title + (f" (its first {MOST:,} steps)" if lines == MOST else "")}
    if not packing.texts:
        head["note"] = NO_TEXTS
    return {
        "head": head,
        **packing.document(),
        "sent": sent,
        "phases": [*phases.values()],
        **({"routes": routes} if routes else {}),
    }


def page(folder: Path) -> str:
    """The page of a run: ``timeline.html`` as the run has left it, or made now.

    Raises LabError: the run has left no step log.
    """
    try:
        return (folder / NAME).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return document(recording(folder))


def write(folder: Path) -> Path | None:
    """``timeline.html`` in a run's folder; None where the run has no steps to show."""
    try:
        page = document(recording(folder))
    except LabError:
        return None
    atomic_write(folder / NAME, page)
    return folder / NAME


def arrivals(folder: Path, phase: str, shift: float = 0.0) -> list[Arrival]:
    """When the requests of one phase were sent, from ``requests.jsonl``, in order of time; [] if the run has none.

    ``shift``: seconds to add to the clients' clock, which is the step log's.
    """
    try:
        records = [json.loads(line) for line in nofollow.read_text(folder / "requests.jsonl").splitlines()]
        sent = [(str(data["id"]), round(data["start"] + shift, 6)) for data in records if data["phase"] == phase]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return sorted(((name, at) for name, at in sent if name), key=lambda arrival: arrival[1])


def _title(folder: Path) -> str:
    try:
        lab = json.loads((folder / "result.json").read_text(encoding="utf-8"))["lab"]
    except (OSError, ValueError, LookupError, TypeError):
        return folder.name
    return f"{lab}, {folder.name}"


def _began(path: Path) -> float:
    """When a phase's first step ended: the order in which the phases were run."""
    return next((float(line["t"]) for line in read(path)), 0.0)
