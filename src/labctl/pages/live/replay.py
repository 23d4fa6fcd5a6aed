"""A run that is over: its step logs as one recording, and ``timeline.html``, which holds it and needs no server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from labctl.pages.live.feed import LABEL, Feed
from labctl.pages.live.lines import read_step_lines
from labctl.pages.live.packing import Packing
from labctl.pages.live.page import document
from labctl.pages.live.routes import RouteEvent, Routes
from labkit import nofollow
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.names import LetterNames, Numbered
from labsched.vllm import reader

NAME = "timeline.html"
BETWEEN_S = 0.5  # from the end of a phase to the next one, which had a server of its own
MOST = 200_000  # steps in one file
NO_TEXTS = "texts were not recorded: labctl run --texts records them"
Arrival = tuple[str, float]  # a request's name in the step log, and when it was sent


def page_recording(folder: Path) -> dict[str, Any]:
    """The page's recording of a run's folder: every step of every phase, without warm-up.

    Raises LabError: the run has left no step log.
    """
    if reader.is_recording(folder):
        return _of_vllm(folder)
    feed, packing, lines, sent = Feed(), Packing(), 0, list[Arrival]()
    router, routes, shift, end = Routes(), list[RouteEvent](), 0.0, 0.0
    groups = list[list[Any]]()  # groups of requests: title, first arrival, ids, the lanes of their phase
    logs = sorted(folder.glob("steps-*.jsonl"), key=_began)
    for path in logs:
        phase = path.stem.removeprefix("steps-")
        named = [phase] if len(logs) > 1 else []
        first, lanes = True, list[int]()
        for line in read_step_lines(path):
            if lines == MOST:
                break
            if first:
                shift, first = end + BETWEEN_S - (line["t"] - line["dur"]), False
                asked = asked_for(folder, phase)
                feed.names = router.names = LetterNames.of_groups([one.id for one in each] for each in asked.values())
                feed.labels = {one.id: one.prompt for each in asked.values() for one in each}
                for model, each in asked.items():
                    arrivals = [(one.id, round(one.sent + shift, 6)) for one in each]
                    groups.append([", ".join([model, *named]), arrivals[0][1], [id for id, _ in arrivals], lanes])
                    sent += arrivals
            end = line["t"] + shift
            lines += 1
            whose = [*named, f"replica {line['replica']}"] if "replica" in line else named
            model = f"{line['model']} ({', '.join(whose)})" if whose else line["model"]
            line |= {"t": round(end, 6), "model": model}
            routes += router.events([line])
            for event in feed.events([line]):
                packing.take(event)
                if event.get("k") != "model" and event["m"] not in lanes:
                    lanes.append(event["m"])
    if not lines:
        raise LabError(
            f"{folder} has no step that can be shown", "", "labctl run leaves steps-*.jsonl there", code="steps-none"
        )
    title = _title(folder)
    head = {"title": title + (f" (its first {MOST:,} steps)" if lines == MOST else "")}
    if not packing.texts:
        head["note"] = NO_TEXTS
    document = {"head": head, **packing.document(), "sent": sorted(sent, key=lambda one: one[1]), "groups": groups}
    return {**document, "routes": routes} if routes else document


def _of_vllm(folder: Path) -> dict[str, Any]:
    """The newest recording of a learner's own vLLM: its last steps, if there are more than a page holds."""
    feed, packing, lines = Feed(), Packing(), reader.read_vllm_recording(folder)
    steps = [line for line in lines if line["kind"] in ("step", "change")][-MOST:]
    if not steps:
        raise LabError(f"{folder} has no step that can be shown", "", "send vLLM a request", code="steps-none")
    zero = steps[0]["t"] - steps[0]["dur"]
    requests = [line for line in lines if line["kind"] == "request"]
    sent = [(str(line["name"]), round(line["arrived"] - line["waited"] - zero, 6)) for line in requests]
    sent.sort(key=lambda one: one[1])
    ids, model = [name for name, _ in sent], str(lines[0]["model"])
    feed.names, lanes = Numbered(), set[int]()
    for line in steps:
        for event in feed.events([line | {"t": round(line["t"] - zero, 6)}]):
            packing.take(event)
            lanes |= {event["m"]} if event.get("k") != "model" else set()
    head = {"title": str(folder), "note": reader.NO_TEXTS}
    groups = [[model, sent[0][1], ids, sorted(lanes)]] if sent else []
    return {"head": head, **packing.document(), "sent": sent, "groups": groups}


def replay_page(folder: Path) -> str:
    """The page of a run: ``timeline.html`` as the run has left it, or made now.

    Raises LabError: the run has left no step log.
    """
    try:
        return (folder / NAME).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return document(page_recording(folder))


def write_timeline_page(folder: Path) -> Path | None:
    """``timeline.html`` in a run's folder; None if the run has no steps to show."""
    try:
        page = document(page_recording(folder))
    except LabError:
        return None
    atomic_write(folder / NAME, page)
    return folder / NAME


class ClientRequest(NamedTuple):
    """A request of a run's own client: its id, the first words of its prompt, and when it was sent."""

    id: str
    prompt: str
    sent: float


def asked_for(folder: Path, phase: str) -> dict[str, list[ClientRequest]]:
    """The requests of one phase by the model that they asked, in order of arrival, from ``requests.jsonl``.

    Times are seconds on the step log's clock; {} if the run has none. Where Triton gives a model ids of its own (an
    iterative sequence without one of the client's), the ids are those of the log, in the order in which it shows them.
    """
    found: dict[str, list[ClientRequest]] = {}
    try:
        records = [json.loads(line) for line in nofollow.read_text(folder / "requests.jsonl").splitlines()]
        for data in records:
            if data["phase"] == phase and data["id"]:
                one = ClientRequest(str(data["id"]), str(data.get("prompt", ""))[:LABEL], float(data.get("start", 0.0)))
                found.setdefault(str(data.get("model", "")), []).append(one)
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    seen: dict[str, dict[str, None]] = {}
    for line in read_step_lines(folder / f"steps-{phase}.jsonl"):
        seen.setdefault(line["model"], {}).update(dict.fromkeys((*line["ids"], *line.get("waiting", ()))))
    logged = {id for ids in seen.values() for id in ids}
    for model, each in found.items():
        each.sort(key=lambda one: one.sent)
        if not any(one.id in logged for one in each) and len(each) == len(seen.get(model, ())):
            each[:] = [one._replace(id=id) for one, id in zip(each, seen[model], strict=True)]
    return found


def _title(folder: Path) -> str:
    try:
        lab = json.loads((folder / "result.json").read_text(encoding="utf-8"))["lab"]
    except (OSError, ValueError, LookupError, TypeError):
        return folder.name
    return f"{lab}, {folder.name}"


def _began(path: Path) -> float:
    """When a phase's first step ended: the order in which the phases were run."""
    return next((float(line["t"]) for line in read_step_lines(path)), 0.0)
