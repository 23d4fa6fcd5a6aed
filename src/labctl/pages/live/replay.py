"""A run that is over: its step logs as one recording, and ``timeline.html``, which holds it and needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from labctl.pages.live.events import LaneEvent
from labctl.pages.live.feed import FIELDS, LABEL, Feed
from labctl.pages.live.lines import CHANGE, other_form_as_error, read_step_lines
from labctl.pages.live.page import document
from labctl.pages.live.routes import RouteEvent, Routes
from labkit import disk
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence.names import LetterNames, Numbered
from labsched.log.files import json_object
from labsched.replay.recording import Arrival
from labsched.vllm import reader

NAME = "timeline.html"
BETWEEN_S = 0.5  # from the end of a phase to the next one, which had a server of its own
MOST = 200_000  # steps in one file
NO_TEXTS = "texts were not recorded: labctl run --texts records them"


class _Arrival(NamedTuple):
    """When a request was sent, in seconds of the recording, by its name in the step log."""

    name: str
    at: float


class _Group(NamedTuple):
    """Requests that the page draws on one axis of time, from the first arrival on."""

    title: str
    began: float
    ids: list[str]
    lanes: list[int]  # of their phase


def page_recording(folder: Path) -> dict[str, Any]:
    """The page's recording of a run's folder: every step of every phase, without warm-up.

    Raises LabError: the run has left no step log, or one with lines of another form.
    """
    with other_form_as_error(folder):
        return _vllm_recording(folder) if reader.is_recording(folder) else _run_recording(folder)


def _run_recording(folder: Path) -> dict[str, Any]:
    recording = _Recording()
    logs = sorted(folder.glob("steps-*.jsonl"), key=_began)
    for path in logs:
        recording.add_phase(folder, path, named=len(logs) > 1)
    if not recording.lines:
        raise LabError(
            f"{folder} has no step that can be shown", "", "labctl run leaves steps-*.jsonl there", code="steps-none"
        )
    title = _title(folder)
    if recording.lines == MOST:
        title += f" (its first {MOST:,} steps)"
    return recording.document(title)


class _Recording:
    """The phases of a run, one after the other on one axis of time."""

    def __init__(self) -> None:
        self.lines = 0
        self._feed, self._packing, self._router = Feed(), Packing(), Routes()
        self._routes: list[RouteEvent] = []
        self._sent: list[_Arrival] = []
        self._groups: list[_Group] = []
        self._end = 0.0  # of the last step

    def add_phase(self, folder: Path, log: Path, named: bool) -> None:
        """Add a phase's steps. ``named``: its name is shown, because there are others."""
        phase = log.stem.removeprefix("steps-")
        names = [phase] if named else []
        lanes: list[int] = []
        shift: float | None = None  # from the log's clock to the recording's
        for line in read_step_lines(log):
            if self.lines == MOST:
                return
            if shift is None:
                shift = self._end + BETWEEN_S - (line["t"] - line["dur"])
                self._add_requests(asked_for(folder, phase), shift, names, lanes)
            self.lines += 1
            self._end = line["t"] + shift
            where = [*names, f"replica {line['replica']}"] if "replica" in line else names
            model = f"{line['model']} ({', '.join(where)})" if where else line["model"]
            line |= {"t": round(self._end, 6), "model": model}
            self._routes += self._router.events([line])
            for event in self._feed.events([line]):
                self._packing.take(event)
                if event.get("k") != "model" and event["m"] not in lanes:
                    lanes.append(event["m"])

    def _add_requests(
        self, asked: dict[str, list[ClientRequest]], shift: float, phase: list[str], lanes: list[int]
    ) -> None:
        """Name the requests of a phase, and group them by model; ``lanes`` are filled in with the phase's steps."""
        self._feed.names = LetterNames.of_groups([request.id for request in requests] for requests in asked.values())
        self._router.names = self._feed.names
        self._feed.labels = {request.id: request.prompt for requests in asked.values() for request in requests}
        for model, requests in asked.items():
            arrivals = [_Arrival(request.id, round(request.sent + shift, 6)) for request in requests]
            ids = [arrival.name for arrival in arrivals]
            self._groups.append(_Group(", ".join([model, *phase]), arrivals[0].at, ids, lanes))
            self._sent += arrivals

    def document(self, title: str) -> dict[str, Any]:
        head = {"title": title}
        if not self._packing.texts:
            head["note"] = NO_TEXTS
        sent = sorted(self._sent, key=lambda arrival: arrival.at)
        recording = {"head": head, **self._packing.document(), "sent": sent, "groups": self._groups}
        return {**recording, "routes": self._routes} if self._routes else recording


def _vllm_recording(folder: Path) -> dict[str, Any]:
    """The newest recording of a learner's own vLLM: its last steps, if there are more than a page holds."""
    feed, packing, lines = Feed(), Packing(), reader.read_vllm_recording(folder)
    steps = [line for line in lines if line["kind"] in ("step", CHANGE)][-MOST:]
    if not steps:
        raise LabError(f"{folder} has no step that can be shown", "", "send vLLM a request", code="steps-none")
    zero = steps[0]["t"] - steps[0]["dur"]
    requests = [line for line in lines if line["kind"] == "request"]
    came = (Arrival.from_json(line, str(line["name"]), zero) for line in requests)
    sent = [_Arrival(arrival.name, round(arrival.at, 6)) for arrival in came]
    sent.sort(key=lambda arrival: arrival.at)
    feed.names = Numbered()
    lanes: set[int] = set()
    for line in steps:
        for event in feed.events([line | {"t": round(line["t"] - zero, 6)}]):
            packing.take(event)
            if event.get("k") != "model":
                lanes.add(event["m"])
    groups = []
    if sent:
        groups = [_Group(str(lines[0]["model"]), sent[0].at, [arrival.name for arrival in sent], sorted(lanes))]
    head = {"title": str(folder), "note": reader.NO_TEXTS}
    return {"head": head, **packing.document(), "sent": sent, "groups": groups}


def replay_page(folder: Path) -> str:
    """The page of a run: its ``timeline.html``, or the page made now if there is none.

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
    asked: dict[str, list[ClientRequest]] = {}
    try:
        records = [json_object(line) for line in disk.read_text(folder / "requests.jsonl").splitlines()]
        for data in records:
            if data["phase"] == phase and data["id"]:
                prompt = str(data.get("prompt", ""))[:LABEL]
                request = ClientRequest(str(data["id"]), prompt, float(data.get("start", 0.0)))
                asked.setdefault(str(data.get("model", "")), []).append(request)
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    seen: dict[str, dict[str, None]] = {}  # ids by model, in order
    for line in read_step_lines(folder / f"steps-{phase}.jsonl"):
        seen.setdefault(line["model"], {}).update(dict.fromkeys((*line["ids"], *line.get("waiting", ()))))
    logged = {id for ids in seen.values() for id in ids}
    for model, requests in asked.items():
        requests.sort(key=lambda request: request.sent)
        ids = seen.get(model, {})
        if len(requests) == len(ids) and not any(request.id in logged for request in requests):
            requests[:] = [request._replace(id=id) for request, id in zip(requests, ids, strict=True)]
    return asked


def _title(folder: Path) -> str:
    try:
        lab = disk.read_object(folder / "result.json")["lab"]
    except (OSError, ValueError, LookupError, TypeError):
        return folder.name
    return f"{lab}, {folder.name}"


def _began(path: Path) -> float:
    """When a phase's first step ended: the order in which the phases were run."""
    return next((float(line["t"]) for line in read_step_lines(path)), 0.0)


KEPT = ("r", "w", "y", "more", "e", "v", "b", "kv", "kb", "s", "z")  # fields of a step that are written if they change
MICROSECONDS = 1e6


class _Lane:
    """One lane's steps: times in whole microseconds since the step before, and each kept field's changes."""

    def __init__(self, event: LaneEvent) -> None:
        self.head = {name: value for name, value in event.items() if name in ("name", "model")}
        self.ends: list[int] = []
        self.took: list[int] = []
        self.changes: dict[str, list[Any]] = {name: [] for name in ("n", *KEPT)}
        self.now: LaneEvent | None = None  # how things stand, where something changed after the last step
        self._last: dict[str, Any] = {}
        self._end = 0

    def take(self, step: LaneEvent) -> None:
        self.now = None
        place, end = len(self.ends), round(step["t"] * MICROSECONDS)
        self.ends.append(end - self._end)
        self.took.append(round(step["d"] * MICROSECONDS))
        self._end = end
        self._change(place, "n", step["n"] - place)
        for name in KEPT:
            self._change(place, name, step.get(name))

    def _change(self, place: int, name: str, value: Any) -> None:
        if value != self._last.get(name):
            self.changes[name] += (place, value)
            self._last[name] = value

    def columns(self) -> dict[str, Any]:
        """The lane as JSON knows it; a field's changes are its place and value in turn."""
        columns = {**self.head, "t": self.ends, "d": self.took}
        columns |= {name: changes for name, changes in self.changes.items() if changes}
        if self.now:
            columns["now"] = self.now
        return columns


class Packing:
    """Takes the events of :class:`~labctl.pages.live.feed.Feed` in order. Between two steps it keeps only the last."""

    def __init__(self) -> None:
        self._lanes: list[_Lane] = []
        self._requests: list[list[Any]] = []  # lane, id, label, name
        self._texts: list[list[str]] = []  # for each request, its new text in each of its steps
        self.texts = False  # whether any request has one

    def take(self, event: LaneEvent) -> None:
        """Take the next event."""
        if event.get("k") == "model":
            self._lanes.append(_Lane(event))
            return
        for number, id, label, name in event.get("q", ()):
            assert number == len(self._requests)
            self._requests.append([event["m"], id, label, name])
            self._texts.append([])
        if "r" not in event:
            self._lanes[event["m"]].now = event
            return
        self._lanes[event["m"]].take(event)
        members = event["r"][::FIELDS]
        self.texts = self.texts or "x" in event
        before = {number: self._unseen(number, text) for number, text in event.get("b", ())}
        for number, text in zip(members, event.get("x") or [""] * len(members), strict=True):
            self._texts[number].append(before.get(number, "") + text)

    def _unseen(self, number: int, text: str) -> str:
        """The part of a request's text that came while no texts were logged."""
        logged = "".join(self._texts[number])
        if not text.startswith(logged):  # the model has forgotten the beginning
            self._texts[number] = [""] * len(self._texts[number])
            return text
        return text[len(logged) :]

    def document(self) -> dict[str, Any]:
        """Lanes; requests as [lane, id, label, name]; each text and the lengths of its parts, where there are texts.

        Lengths are in UTF-16 units, as JavaScript counts.
        """
        document: dict[str, Any] = {"lanes": [lane.columns() for lane in self._lanes], "requests": self._requests}
        if self.texts:
            document["texts"] = [["".join(parts), list(map(_units, parts))] for parts in self._texts]
        return document


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
