"""One request's story, step by step, with reasons, from step logs (docs/develop/step-log.md)."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from labctl.pages.live.lines import CHANGE, HELD, Instance, Line, other_form_as_error, read_step_lines
from labctl.pages.live.replay import asked_for
from labkit import disk
from labkit.errors import LabError
from labkit.evidence.names import LetterNames, Numbered
from labkit.evidence.steplog import REPLICA, refusal_reason, run_folders, shortage_in_words
from labsched.log.files import json_object
from labsched.step import NOT_RECORDED
from labsched.vllm import reader

PREFIX, SUFFIX = "steps-", ".jsonl"  # of the file of a step log


class LaneKey(NamedTuple):
    """What tells one lane from all others."""

    phase: str  # a run's phase; "" for a running stack
    replica: str  # its number; "" for a stack of one server
    model: str
    instance: str


@dataclass
class InstanceSteps:
    """The steps of one instance of a model, in order; the lines are whole (:mod:`labctl.pages.live.lines`).

    ``labels`` are the names that a run's own clients gave to requests, by their ids in the log. ``names`` are what
    pages and tables call them: A, B, C ... in order of arrival.
    """

    key: LaneKey
    lines: list[Line] = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)
    names: LetterNames = field(default_factory=LetterNames)

    @property
    def title(self) -> str:
        parts = [self.key.model]
        if self.key.instance not in ("0", "0_0"):
            parts.append(f"instance {self.key.instance}")
        if self.key.replica:
            parts.append(f"replica {self.key.replica}")
        if self.key.phase:
            parts.append(f"phase {self.key.phase}")
        return ", ".join(parts)

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
        if not self.why and (self.computed or self.made):
            return f"{self.computed:,} computed, {self.made:,} new"
        return self.why

    def continues(self, before: StoryEvent) -> bool:
        """Whether the same happened for the same reason in the step before."""
        return (self.what, self.why) == (before.what, before.why) and self.first <= before.last + 1

    def extend(self, following: StoryEvent) -> None:
        """Take the next steps into this event."""
        self.last, self.ended = following.last, following.ended
        self.made += following.made
        self.computed += following.computed


# -- reading ----------------------------------------------------------------------------------------------------------


def of_result(path: Path) -> list[InstanceSteps]:
    """The lanes of a run, by its folder, or of one of its phases, by its ``steps-PHASE.jsonl``. Warm-up is left out.

    Raises LabError: there is no step log, or it cannot be read.
    """
    with other_form_as_error(path):
        return _of_result(path)


def _of_result(path: Path) -> list[InstanceSteps]:
    if reader.is_recording(path):
        recorded = _complete_lines([_vllm_lane(reader.read_vllm_recording(path))])
        _name(recorded, Numbered())
        return recorded
    folder = path if path.is_dir() else path.parent
    lanes: dict[LaneKey, InstanceSteps] = {}
    for file in sorted(path.glob(f"{PREFIX}*{SUFFIX}")) if path.is_dir() else [path]:
        phase = file.name.removeprefix(PREFIX).removesuffix(SUFFIX)
        _read(lanes, file, phase, _labels(folder, phase))
        asked = asked_for(folder, phase).values()
        names = LetterNames.of_groups([request.id for request in requests] for requests in asked)
        _name([lane for lane in lanes.values() if lane.key.phase == phase], names)
    if not lanes:
        raise LabError(
            f"{path} has no step log",
            "a run leaves steps-PHASE.jsonl",
            "name a folder below results/",
            code="step-log-missing",
        )
    return _complete_lines(lanes.values())


def _vllm_lane(lines: Sequence[Line]) -> InstanceSteps:
    """The lane of a learner's own vLLM; its requests' labels are vLLM's ids."""
    steps: list[Line] = [line for line in lines if line["kind"] in ("step", CHANGE)]
    key = LaneKey("", "", str(lines[0]["model"]), str(lines[0]["instance"]))
    return InstanceSteps(key, steps, reader.vllm_ids(lines))


def _name(lanes: Sequence[InstanceSteps], names: LetterNames) -> None:
    """Name the requests of lanes that were served together; new ones are named in the order of the log."""
    lines = sorted((line for lane in lanes for line in lane.lines), key=lambda line: line["t"])
    names.take(id for line in lines for id in (*line["ids"], *line.get("waiting", ())))
    for lane in lanes:
        lane.names = names


def of_stack(run_dir: Path, held: Sequence[Line]) -> list[InstanceSteps]:
    """The lanes of a running stack, as far as its logs go back; ``held`` are the steps that wait for the clock."""
    lanes: dict[LaneKey, InstanceSteps] = {}
    for folder in run_folders(run_dir):
        for file in folder.glob(f"{PREFIX}*{SUFFIX}"):
            _read(lanes, file, "", {}, replica_of(folder, run_dir))
    for state in held:
        key = LaneKey("", str(state.get("replica", "")), str(state["model"]), str(state["instance"]))
        lane = lanes.setdefault(key, InstanceSteps(key))
        last = max((line.get("n", 0) for line in lane.lines), default=0)
        lane.lines.append({"t": time.monotonic(), "dur": 0.0, "ids": [], **state, "kind": HELD, "n": last + 1})
    _name([*lanes.values()], LetterNames())
    return _complete_lines(lanes.values())


def replica_of(folder: Path, run_dir: Path) -> str:
    """The number of the replica whose run folder it is; "" for a stack of one server."""
    return folder.name.removeprefix(REPLICA) if folder != run_dir else ""


def _read(
    lanes: dict[LaneKey, InstanceSteps], file: Path, phase: str, labels: Mapping[str, str], replica: str = ""
) -> None:
    """Add the lines of a file to their lanes."""
    for line in read_step_lines(file):
        key = LaneKey(phase, str(line.get("replica", replica)), line["model"], line["instance"])
        lanes.setdefault(key, InstanceSteps(key, labels=labels)).lines.append(line)


def _complete_lines(lanes: Collection[InstanceSteps]) -> list[InstanceSteps]:
    """The lanes with whole lines, in order of time: a log that was rotated comes in two files."""
    for lane in lanes:
        instance = Instance()
        with other_form_as_error(lane.title):
            lane.lines = [instance.whole(line) for line in sorted(lane.lines, key=lambda line: line["t"])]
            for line in lane.lines:  # a refusal of another form is found here
                if line["waiting"]:
                    refusal_reason(line)
    return list(lanes)


def _labels(folder: Path, phase: str) -> dict[str, str]:
    """The labels of a phase's requests by their ids, from ``requests.jsonl``; {} if the run has none."""
    labels: dict[str, str] = {}
    counts: Counter[str] = Counter()  # several requests may have one label
    try:
        lines = disk.read_text(folder / "requests.jsonl").splitlines()
        for data in map(json_object, lines):
            if data["phase"] == phase and data["id"]:
                label = str(data["label"])
                counts[label] += 1
                labels[str(data["id"])] = label if counts[label] == 1 else f"{label}#{counts[label]}"
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return labels


# -- one request ------------------------------------------------------------------------------------------------------


def lanes_of(lanes: Sequence[InstanceSteps], request: str) -> list[tuple[InstanceSteps, str]]:
    """Each lane that shows a request, with its id there: by its id in the log, its name (B), or its label.

    A label is also known by its beginning up to a "-": vLLM's own ids go on behind the name that a client gave. The
    ids of our OpenAI API have that name behind a number and a ":".
    """
    by_id = [(lane, request) for lane in lanes if request in lane.requests()]
    if by_id:
        return by_id
    requests = [(lane, id) for lane in lanes for id in lane.requests()]
    if by_name := [(lane, id) for lane, id in requests if lane.names[id] == request.upper()]:
        return by_name
    if by_client := [(lane, id) for lane, id in requests if id.partition(":")[2] == request]:
        return by_client
    labelled = [(lane, id, label) for lane in lanes for id, label in lane.labels.items()]
    by_label = [(lane, id) for lane, id, label in labelled if f"{label}-".startswith(f"{request}-")]
    return [(lane, id) for lane, id in by_label if id in lane.requests()]


def story_of(lane: InstanceSteps, name: str) -> list[StoryEvent]:
    """The story of a request in a lane. Steps in which the same happens for the same reason are one event."""
    story: list[StoryEvent] = []
    for line in lane.lines:
        for event in events_of(line, name, lane.names):
            if story and line["kind"] != HELD and event.continues(story[-1]):
                story[-1].extend(event)
            else:
                story.append(event)
    return story


def events_of(line: Line, name: str, called: Mapping[str, str]) -> Iterator[StoryEvent]:
    """What a step did with a request; ``called`` are other names for requests than the log's."""
    because = line.get("because", {})
    event = functools.partial(StoryEvent, line["n"], line["n"], line["t"] - line["dur"], line["t"])
    if name in line.get("evicted", ()):
        yield event("preempted", shortage_in_words(because), because)
    elif name in line["waiting"]:
        first = line["waiting"][0] == name
        yield event("waits", _waits(line, name, called), because if first else {})
    if name in line["ids"]:
        at = line["ids"].index(name)
        work = line["made"][at], line["tokens"][at]
        if line["kind"] == HELD:
            yield event("next step", "the clock holds it", {}, *work)
        elif name in line.get("joined", ()):
            yield event("joins", "", {}, *work)
        else:
            yield event("prefill" if line["phase"][at] == "p" else "decode", "", {}, *work)
    if name in line.get("ended", {}):
        yield event("ends", str(line["ended"][name]))


def _waits(line: Line, name: str, called: Mapping[str, str]) -> str:
    """Why it waits. The numbers are those of the first request in the queue."""
    place = line["waiting"].index(name)
    if place == 0:
        return refusal_reason(line) or NOT_RECORDED
    why = line["why"] if isinstance(line["why"], str | None) else line["why"][place]
    first = line["waiting"][0]
    return f"{_ordinal(place + 1)} in the queue, behind {called.get(first, first)}: {why or NOT_RECORDED}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
