"""One request's story, step by step, with reasons, from step logs (docs/develop/step-log.md)."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labctl.pages.live.lines import HELD, Instance, Line, read_step_lines
from labctl.pages.live.replay import asked_for
from labkit import nofollow
from labkit.errors import LabError
from labkit.evidence.steplog import REPLICA
from labkit.names import LetterNames, Numbered
from labsched.vllm import reader

FIRST, LAST = "steps-", ".jsonl"


@dataclass
class InstanceSteps:
    """The steps of one instance of a model, in order; the lines are whole (:mod:`labctl.pages.live.lines`).

    ``labels`` are the names that a run's own clients gave to requests, by their ids in the log. ``names`` are what
    pages and tables call them: A, B, C ... in order of arrival.
    """

    phase: str  # a run's phase; "" for a running stack
    replica: str
    model: str
    instance: str
    lines: list[Line] = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)
    names: LetterNames = field(default_factory=LetterNames)

    @property
    def title(self) -> str:
        of = [self.model, *([f"instance {self.instance}"] if self.instance not in ("0", "0_0") else [])]
        of += [f"replica {self.replica}"] if self.replica else []
        return ", ".join([*of, *([f"phase {self.phase}"] if self.phase else [])])

    def requests(self) -> list[str]:
        """The ids of all requests, in the order in which the log first shows them."""
        return list(dict.fromkeys(name for line in self.lines for name in (*line["ids"], *line["waiting"])))


@dataclass
class StoryEvent:
    """What one step, or several consecutive steps, did with a request: ``why`` is in words.

    ``because`` are the numbers of a refusal; ``seconds`` go from the first step's beginning to the last one's end.
    """

    first: int
    last: int
    began: float
    ended: float
    what: str
    why: str = ""
    because: Mapping[str, int] = field(default_factory=dict)
    made: int = 0
    computed: int = 0

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def words(self) -> str:
        """Why; for a request in the batch, what was computed for it."""
        return self.why or (f"{self.computed:,} computed, {self.made:,} new" if self.computed or self.made else "")


# -- reading ----------------------------------------------------------------------------------------------------------


def of_result(path: Path, phase: str = "") -> list[InstanceSteps]:
    """The lanes of a run, by its folder, or of one of its phases, by its ``steps-PHASE.jsonl``. Warm-up is left out.

    Args:
        phase: which recording in a folder of a learner's own vLLM; "": the newest.

    Raises LabError: there is no step log, or it cannot be read.
    """
    if reader.is_recording(path):
        lines = reader.read_vllm_recording(path, phase)
        found = _whole(_of_vllm(lines))
        _name(found, Numbered())
        return found
    folder = path if path.is_dir() else path.parent
    lanes: dict[tuple[str, ...], InstanceSteps] = {}
    for file in sorted(path.glob(f"{FIRST}*{LAST}")) if path.is_dir() else [path]:
        phase = file.name.removeprefix(FIRST).removesuffix(LAST)
        _read(lanes, file, phase, _labels(folder, phase))
        names = LetterNames.of_groups([one.id for one in each] for each in asked_for(folder, phase).values())
        _name([lane for lane in lanes.values() if lane.phase == phase], names)
    if not lanes:
        raise LabError(
            f"{path} has no step log",
            "a run leaves steps-PHASE.jsonl",
            "name a folder below results/",
            code="step-log-missing",
        )
    return _whole(lanes)


def _of_vllm(lines: Sequence[Line]) -> dict[tuple[str, ...], InstanceSteps]:
    """The lane of a learner's own vLLM; its requests' labels are vLLM's ids."""
    steps: list[Line] = [line for line in lines if line["kind"] in ("step", "change")]
    key = ("", "", str(lines[0]["model"]), str(lines[0]["instance"]))
    return {key: InstanceSteps(*key, lines=steps, labels=reader.vllm_ids(lines))}


def _name(lanes: Sequence[InstanceSteps], names: LetterNames) -> None:
    """Name the requests of lanes that were served together; new ones are named in the order of the log."""
    lines = sorted((line for lane in lanes for line in lane.lines), key=lambda line: line["t"])
    names.take(id for line in lines for id in (*line["ids"], *line.get("waiting", ())))
    for lane in lanes:
        lane.names = names


def of_stack(run_dir: Path, held: Sequence[Line]) -> list[InstanceSteps]:
    """The lanes of a running stack, as far as its logs go back; ``held`` are the steps that wait for the clock."""
    lanes: dict[tuple[str, ...], InstanceSteps] = {}
    for folder in nofollow.folders(run_dir):
        for file in folder.glob(f"{FIRST}*{LAST}"):
            _read(lanes, file, "", {}, replica_of(folder, run_dir))
    for state in held:
        key = ("", str(state.get("replica", "")), str(state["model"]), str(state["instance"]))
        lane = lanes.setdefault(key, InstanceSteps(*key))
        last = max((line.get("n", 0) for line in lane.lines), default=0)
        lane.lines.append({"t": time.monotonic(), "dur": 0.0, "ids": [], **state, "kind": HELD, "n": last + 1})
    _name([*lanes.values()], LetterNames())
    return _whole(lanes)


def replica_of(folder: Path, run_dir: Path) -> str:
    """The number of the replica whose run folder it is; "" for a stack of one server."""
    return folder.name.removeprefix(REPLICA) if folder != run_dir else ""


def _read(
    lanes: dict[tuple[str, ...], InstanceSteps], file: Path, phase: str, labels: Mapping[str, str], replica: str = ""
) -> None:
    for line in read_step_lines(file):
        key = (phase, str(line.get("replica", replica)), line["model"], line["instance"])
        lanes.setdefault(key, InstanceSteps(*key, labels=labels)).lines.append(line)


def _whole(lanes: Mapping[tuple[str, ...], InstanceSteps]) -> list[InstanceSteps]:
    """The lanes with whole lines, in order of time: a log that was rotated comes in two files."""
    for lane in lanes.values():
        instance = Instance()
        try:
            lane.lines = [instance.whole(line) for line in sorted(lane.lines, key=lambda line: line["t"])]
            for line in lane.lines:  # a model may write anything: a refusal of another form is found here
                if line["waiting"]:
                    refusal_reason(line)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise LabError(
                f"the step log of {lane.title} has lines of another form", str(error), code="step-log-invalid"
            ) from error
    return list(lanes.values())


def _labels(folder: Path, phase: str) -> dict[str, str]:
    """The labels of a phase's requests by their ids, from ``requests.jsonl``; {} if the run has none."""
    labels: dict[str, str] = {}
    try:
        lines = nofollow.read_text(folder / "requests.jsonl").splitlines()
        for data in map(json.loads, lines):
            if data["phase"] == phase and data["id"]:
                count = sum(label == data["label"] for label in labels.values())
                labels[str(data["id"])] = f"{data['label']}#{count + 1}" if count else str(data["label"])
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return labels


# -- one request ------------------------------------------------------------------------------------------------------


def lanes_of(lanes: Sequence[InstanceSteps], request: str) -> list[tuple[InstanceSteps, str]]:
    """Each lane that shows a request, with its id there: by its id in the log, its name (B), or its label.

    A label is also known by its beginning up to a "-": vLLM's own ids go on behind the name that a client gave.
    """
    found = [(lane, request) for lane in lanes if request in lane.requests()]
    if not found:
        called = [(lane, id) for lane in lanes for id in lane.requests() if lane.names[id] == request.upper()]
        found = called or found
    if not found:
        known = [(lane, *each) for lane in lanes for each in lane.labels.items()]
        named = [(lane, name) for lane, name, label in known if f"{label}-".startswith(f"{request}-")]
        found = [(lane, name) for lane, name in named if name in lane.requests()]
    return found


def story_of(lane: InstanceSteps, name: str) -> list[StoryEvent]:
    """The story of a request in a lane. Steps in which the same happens for the same reason are one event."""
    found: list[StoryEvent] = []
    for line in lane.lines:
        for event in events_of(line, name, lane.names):
            last = found[-1] if found else None
            joined = last and (last.what, last.why) == (event.what, event.why)
            if last and joined and last.last >= event.first - 1 and line["kind"] != HELD:
                last.last, last.ended = event.last, event.ended
                last.made, last.computed = last.made + event.made, last.computed + event.computed
            else:
                found.append(event)
    return found


def events_of(line: Line, name: str, called: Mapping[str, str] | None = None) -> Iterator[StoryEvent]:
    """What a step did with a request; ``called`` are other names for requests than the log's."""
    because = line.get("because", {})
    event = functools.partial(StoryEvent, line["n"], line["n"], line["t"] - line["dur"], line["t"])
    if name in line.get("evicted", ()):
        yield event("preempted", _describe_shortage(because), because)
    elif name in line["waiting"]:
        first = line["waiting"][0] == name
        yield event("waits", _waits(line, name, called or {}), because if first else {})
    if name in line["ids"]:
        at = line["ids"].index(name)
        prompt = line["phase"][at] == "p"
        held = line["kind"] == HELD
        what = "next step" if held else "joins" if name in line.get("joined", ()) else "prefill" if prompt else "decode"
        yield event(what, "the clock holds it" if held else "", {}, line["made"][at], line["tokens"][at])
    if name in line.get("ended", {}):
        yield event("ends", str(line["ended"][name]))


def _waits(line: Line, name: str, called: Mapping[str, str]) -> str:
    """Why it waits. The numbers are those of the first request in the queue."""
    place = line["waiting"].index(name)
    if place == 0:
        return refusal_reason(line)
    why = line["why"] if isinstance(line["why"], str) else line["why"][place]
    first = line["waiting"][0]
    return f"{_ordinal(place + 1)} in the queue, behind {called.get(first, first)}: {why}"


def refusal_reason(line: Line) -> str:
    """Why the first request in the queue waits, with the numbers: "no KV block: needs 2, 5 used, 3 reserved, of 8"."""
    why, because, slots = line["why"], line.get("because"), line.get("slots")
    why = why if isinstance(why, str) else why[0]
    if why == "no KV block" and because and line.get("evicted"):
        return f"{why}: this step preempts ({_describe_shortage(because)})"
    if why == "no KV block" and because:
        reserved = f", {because['reserve']} reserved" if because["reserve"] else ""
        return f"{why}: needs {because['need']}, {because['used']} used{reserved}, of {because['blocks']}"
    if why == "no tokens" and because:
        return f"{why}: its prompt has {because['tokens']}, the step has room for {because['room']}"
    if why == "no slot" and slots:
        return f"{why}: {slots} of {slots} are taken"
    if why == "batch closed" and slots:
        return f"{why}: {len(line['ids'])} of {slots} slots are taken, and no request may join now"
    if why == "no prefix":
        return f"{why}: another request is computing the beginning that they share"
    return str(why)


def _describe_shortage(because: Mapping[str, int]) -> str:
    return f"the batch would hold {because['used']} blocks of {because['blocks']}" if because else "no KV block"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
