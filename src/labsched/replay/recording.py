"""A recording of the in-flight scheduler, ours or vLLM's, read from a step log: its settings, requests and steps."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from labsched.errors import LabError
from labsched.log.lines import MODEL, RECORD, damage_as_error, require_field, served_lines
from labsched.log.settings import SchedulerSettings
from labsched.log.steplog import REQUEST
from labsched.step import Step
from labsched.vllm import reader

CANCELLED = ("cancelled", "failed")
NAMED_RECORDINGS = 3  # recordings that are named
EMPTY = "recording-empty"  # the code of the error where a recording has no request


@dataclass(frozen=True)
class Arrival:
    """One request. ``at`` and ``left_at`` are seconds since the first arrival; ``after`` and ``left`` count steps.

    ``at`` is its arrival at the server, or at the scheduler where the time before that is not recorded.
    """

    name: str  # unique in the recording
    at: float
    after: int  # steps that were over when it came
    prompt: int  # tokens
    limit: int
    made: int  # tokens of its answer
    why: str  # how it ended, in the step log's word
    left_at: float = 0.0
    left: int = 0  # steps that were over when it ended
    word: bool = False  # it ended with a stop word
    tenant: str | None = None
    priority: int = 2
    resumable: bool = True
    prefixes: bytes = b""  # a hash of the sequence up to each token; b"": unknown, and shared with no other
    follows: bool = False  # its client sent it when all earlier requests had ended: a new load
    waited: float | None = None  # seconds from its arrival at the server until the scheduler had it; None: not recorded
    id: str | None = None  # what vLLM and its client call it; None: its name

    @classmethod
    def from_json(cls, line: Mapping[str, Any], name: str, zero: float = 0.0, base: int = 0) -> Arrival:
        """Read a line REQUEST; ``zero`` (seconds) and ``base`` (steps) are where time begins.

        A line without ``waited`` does not say what came before the scheduler.
        """
        waited = float(line["waited"]) if "waited" in line else None
        return cls(
            name=name,
            at=float(line["arrived"]) - (waited or 0.0) - zero,
            after=int(line["after"]) - base,
            prompt=int(line["prompt"]),
            limit=int(line["limit"]),
            made=int(line["made"]),
            why=str(line["why"]),
            left_at=line["t"] - zero,
            left=int(line["left"]) - base,
            word=bool(line["word"]),
            tenant=line["tenant"],
            priority=int(line["priority"]),
            resumable=bool(line["resumable"]),
            prefixes=base64.b64decode(line["prefixes"], validate=True),
            waited=waited,
            id=str(line["id"]) if "id" in line else None,
        )

    def moved(self, at: float) -> Arrival:
        """The same request at another time: its client waits as long."""
        return replace(self, at=at, left_at=self.left_at + at - self.at)

    @property
    def cancelled(self) -> bool:
        return self.why in CANCELLED

    @property
    def received(self) -> float:
        """When the scheduler had it, in the seconds of ``at``."""
        return self.at if self.waited is None else self.at + self.waited


class Sent(NamedTuple):
    """When a client sent a request, when an open loop should have, when the answer was complete, and when it began.

    All in ``time.monotonic()`` seconds; None: not known, or no open loop.
    """

    start: float
    due: float | None = None
    end: float | None = None
    first: float | None = None


@dataclass(frozen=True)
class Recording:
    """The recording of one model instance. ``steps`` is empty if a trace of another format was read.

    ``zero``: when its time begins, in ``time.monotonic()`` seconds, and ``wall``, in seconds since the epoch. ``way``:
    seconds from a client's sending to the model, where requests count from when they are sent. ``engine``: the instance
    or the rank that recorded it. ``name``: what ``--phase`` calls it. None: not recorded.
    ``pending``: requests without a token when it ended. What they would have got is not known: no replay has them.
    """

    settings: SchedulerSettings
    arrivals: Sequence[Arrival]
    steps: Sequence[Step] = field(default_factory=list)
    source: str = ""
    zero: float = 0.0
    way: float = 0.0
    pending: Sequence[Arrival] = ()
    wall: float | None = None
    engine: str | None = None
    name: str | None = None

    def since_sent(self, sent: Mapping[str, float]) -> Recording:
        """The same, where a request arrives when its client sends it: Triton may hand it over as late as a step ends.

        Args:
            sent: by the request's name, in ``time.monotonic()`` seconds.
        """
        from statistics import median

        zero = min(sent[arrival.name] for arrival in self.arrivals)
        later = self.zero - zero
        idle = _joined_when_idle(self.steps)
        ways = [self.zero + a.at - sent[a.name] for a in self.arrivals if a.name in idle]
        arrivals = [replace(a, at=sent[a.name] - zero, left_at=a.left_at + later) for a in self.arrivals]
        steps = [replace(step, began=step.began + later, over=step.over + later) for step in self.steps]
        return replace(self, arrivals=arrivals, steps=steps, zero=zero, way=max(0.0, median(ways or [0.0])))

    def in_turn(self, sent: Mapping[str, Sent]) -> Recording:
        """The same recording, with the first request of each later load marked (``Arrival.follows``).

        A load begins when its client sends a request after every earlier answer has arrived. An open loop sends at its
        own times, so it is one load.

        Args:
            sent: when each request was sent, by its name. A request that is missing here marks nothing.
        """
        answered: float | None = None  # when all earlier answers had arrived; None: there are none yet
        arrivals = []
        for arrival in self.arrivals:
            request = sent.get(arrival.name)
            follows = bool(request and request.due is None and answered is not None and answered <= request.start)
            arrivals.append(replace(arrival, follows=follows))
            answered = max(answered or 0.0, request.end) if request and request.end is not None else float("inf")
        return replace(self, arrivals=arrivals)

    def numbered(self) -> Recording:
        """The same with numbers for names, in order of arrival: two runs of the same requests can be compared."""
        number = {arrival.name: str(place) for place, arrival in enumerate(self.arrivals, 1)}

        def numbers(names: Iterable[str]) -> list[str]:
            return [number.get(name, name) for name in names]

        steps = [step.renamed(numbers) for step in self.steps]
        arrivals = [replace(arrival, name=number[arrival.name]) for arrival in self.arrivals]
        return replace(self, steps=steps, arrivals=arrivals)


def _joined_when_idle(steps: Sequence[Step]) -> set[str]:
    """The requests that no step held up: each joined the batch when the server had nothing to compute."""
    return {name for step in steps if not step.busy for name in step.joined}


def phases(result: Path) -> list[Path]:
    """The step logs of a result: the file itself, or those of a folder."""
    return sorted(result.glob("steps-*.jsonl")) if result.is_dir() else [result]


def read_recording(result: Path, phase: str | None = None) -> Recording:
    """The recording in a result folder, or in one of its ``steps-PHASE.jsonl``. Warm-up is left out.

    In a folder that `labsched.vllm` writes, that is the newest recording, or the one called ``phase``;
    :func:`read_server` reads those of all its engines.

    Raises:
        LabError: there is none, it is damaged or cut off, or several phases could be meant.
    """
    if reader.is_recording(result):
        return _of_vllm(result, phase)
    files = phases(result)
    if phase:
        known = [_phase(file) for file in files]
        files = [file for file in files if file.name == f"steps-{phase}.jsonl"]
        if not files:
            raise LabError(
                f"{result} has no phase '{phase}'",
                f"it has: {', '.join(known) or 'none'}",
                "name one of them",
                code="phase-unknown",
            )
    recordings = {file: lines for file in files if (lines := served_lines(file))}
    if not recordings:
        raise LabError(
            f"{result} has no recording of an in-flight scheduler",
            "its step log has no line of kind 'scheduler' for " + MODEL,
            RECORD,
            code="recording-missing",
        )
    if len(recordings) > 1:
        names = [_phase(file) for file in recordings]
        raise LabError(
            f"{result} has several recordings",
            ", ".join(names),
            f"name one: --phase {names[0]}",
            code="recording-ambiguous",
        )
    ((file, lines),) = recordings.items()
    with damage_as_error(file):
        return replace(_recording(lines, str(file)), name=_phase(file))


def read_server(result: Path, phase: str | None) -> list[Recording]:
    """The recordings of a server, one for each of its engines: of the ranks of one start of vLLM, or the labs' one.

    Args:
        phase: one of them by name. A file stands for itself alone.

    Raises LabError as :func:`read_recording` does.
    """
    if reader.is_recording(result) and result.is_dir():
        return _ranks_with_requests(result, reader.ranks_of_one_start(result, phase))
    return [read_recording(result, phase)]


def other_recordings(result: Path, read: Sequence[Recording]) -> list[str]:
    """The names of what else a folder holds beside these recordings, oldest first."""
    if not result.is_dir():
        return []
    taken = {recording.name for recording in read}
    if reader.is_recording(result):
        return [name for name in reader.recordings_in(result) if name not in taken]
    return [_phase(file) for file in phases(result) if _phase(file) not in taken and served_lines(file)]


def others_in_words(others: Sequence[str]) -> str:
    """A sentence on what else a folder holds; "": nothing."""
    named = [*others[-NAMED_RECORDINGS:], *(["..."] if len(others) > NAMED_RECORDINGS else [])]
    count = f"{len(others):,} other{'s' if len(others) > 1 else ''}"
    return f"The folder also holds {count} (--phase NAME): {', '.join(named)}." if others else ""


def _phase(file: Path) -> str:
    return file.name.removeprefix("steps-").removesuffix(".jsonl")


def _ranks_with_requests(result: Path, names: Sequence[str]) -> list[Recording]:
    """The recordings of these ranks, without ranks that no request reached. Raises LabError: all are such."""
    found, empty = list[Recording](), list[LabError]()
    for name in names:
        try:
            found.append(_of_vllm(result, name))
        except LabError as error:
            if error.code != EMPTY:
                raise
            empty.append(error)
    if not found:
        raise empty[0]
    return found


def _of_vllm(result: Path, phase: str | None) -> Recording:
    name = reader.latest_recording(result, phase)
    lines = reader.read_vllm_recording(result, name)
    with damage_as_error(result):
        return replace(_recording(lines, str(result)), name=name)


def _recording(lines: Sequence[Mapping[str, Any]], source: str) -> Recording:
    settings = SchedulerSettings.from_json(lines[0])
    computed = [line for line in lines if line["kind"] == "step" and not line.get("warm_up")]
    requests = [line for line in lines if line["kind"] == REQUEST and not line.get("warm_up")]
    requests.sort(key=lambda line: line["came"])
    if not requests or not computed:
        raise LabError(
            f"{source} has no recording",
            f"it has {len(requests):,} requests and {len(computed):,} steps, without the warm-up",
            "name another one with --phase, or record while requests are served" if settings.vllm else RECORD,
            code="recording-without-steps" if requests else EMPTY,
        )
    for before, line in itertools.pairwise(computed):
        require_field(before["t"] <= line["t"], "t")
        if not _follows(before, line, lines):
            why = f"steps are missing before number {line['n']:,}"
            raise LabError(f"{source} is cut off", why, RECORD, code="recording-cut")
    zero = min(line["arrived"] - line.get("waited", 0.0) for line in requests)
    base = min(line["after"] for line in requests)
    arrivals, pending, names = list[Arrival](), list[Arrival](), set[str]()
    owners: dict[str, list[str]] = {}  # by name in the log: the unique names, in order of arrival
    for line in requests:
        name = str(line["name"])
        unique = name if name not in names else f"{name}@{line['came']}"
        names.add(unique)
        owners.setdefault(name, []).append(unique)
        arrival = Arrival.from_json(line, unique, zero, base)
        if settings.vllm:  # no sequence is longer, whatever its client asks for
            require_field(arrival.prompt <= settings.context, "prompt")
            arrival = replace(arrival, limit=min(arrival.limit, settings.context))
        (pending if arrival.why == reader.UNFINISHED and not arrival.made else arrivals).append(arrival)
    steps = _steps(lines, owners, zero)
    missing = {name for step in steps for name in step.ids} - names
    if missing and not lines[0].get("partial"):
        raise LabError(
            f"{source} is cut off",
            f"it has no record of request {min(missing)}, which never ended",
            RECORD,
            code="recording-cut",
        )
    way = 0.0
    if settings.recorded:  # a front end in another process had each request first
        from statistics import median

        idle = _joined_when_idle(steps)
        ways = [a.waited for a in (*arrivals, *pending) if a.name in idle and a.waited is not None]
        way = median(ways) if ways else 0.0
    wall = zero + float(lines[0]["wall"]) if "wall" in lines[0] else None
    return Recording(settings, arrivals, steps, source, zero, way, pending, wall, str(lines[0]["instance"]))


def _follows(before: Mapping[str, Any], step: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no step is missing between two that stand one after the other; changes are numbered too."""
    if step["n"] == before["n"] + 1:
        return True
    changes = {line["n"] for line in lines if "n" in line and (line["kind"] == "change" or line.get("warm_up"))}
    return all(number in changes for number in range(before["n"] + 1, step["n"]))


def _steps(lines: Sequence[Mapping[str, Any]], owners: dict[str, list[str]], zero: float) -> list[Step]:
    def unique(names: Iterable[str]) -> list[str]:
        return [owners[name][0] if owners.get(name) else name for name in names]

    reused = any(len(names) > 1 for names in owners.values())  # by a later request
    steps: list[Step] = []
    busy = False
    over = 0.0  # a step that was decided while another was computed begins when that one is over
    for line in lines:
        if line["kind"] not in ("step", "change") or line.get("warm_up"):
            continue
        if line["kind"] == "step":
            step = Step.from_json(line)
            if reused:
                step = step.renamed(unique)
            step.began, step.over, step.busy, step.more = max(step.began, over) - zero, step.over - zero, busy, {}
            steps.append(step)
            busy = bool(step.waiting) or any(name not in step.ended for name in step.ids)
            over = line["t"]
        else:
            busy = False
        for name in line.get("ended", {}):
            if len(owners.get(name, ())) > 1:
                owners[name].pop(0)
    return steps
