"""What a load generator wrote of each request, joined to a recording by the request's id.

Two forms are read: `requests.jsonl` of `labctl bench`, and that of `vllm bench serve --save-result --save-detailed`.
Both have times of the monotonic clock, so a client on the recorded machine is on the recording's own time.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labsched.errors import LabError
from labsched.log.files import json_object, open_to_read
from labsched.replay.recording import Arrival, Recording, Sent

VLLM_ID = re.compile(  # vLLM's id of a request: its kind, the client's own id, the number of the prompt, vLLM's suffix
    r"(?:chatcmpl-(?P<chat>.+?)|cmpl-(?P<text>.+?)-\d+)(?:-[0-9a-f]{8})?"
)
NUMBERED = re.compile(r"(?P<run>.*?)(?P<number>\d+)")  # `vllm bench serve` numbers the requests of a run
UNJOINED = "client-unjoined"  # the code of the error where a client and a recording share no request
EARLY_S = 0.001  # by which clocks of one machine may differ
CLIENT_FORMS = "requests.jsonl of labctl bench, or vllm bench serve --save-result --save-detailed"
ClientTimes = Callable[[Recording], Mapping[str, Sent]]


def read_clients(path: Path) -> ClientTimes:
    """What gives, for a recording, when the requests of this file were sent, by their names in it.

    Raises LabError: it is neither of the two forms. What is returned raises LabError where no request is the same, or
    the client's clock is another one.
    """
    try:
        with open_to_read(path) as stream:
            text = stream.read()
    except OSError as error:
        raise LabError(f"{path} cannot be read", error.strerror or str(error), "", code="client-unreadable") from error
    try:
        if b'"start_times"' in text:
            numbered = _of_vllm_bench(json_object(text))
            return lambda recording: _checked(path, recording, _by_number(recording, numbered))
        by_id = _of_lines(text)
        return lambda recording: _checked(path, recording, _by_id(recording, by_id))
    except (ValueError, LookupError, TypeError) as error:
        raise LabError(
            f"{path} is not a client's record of its requests", str(error), CLIENT_FORMS, code="client-unreadable"
        ) from error


def sent_requests(recording: Recording) -> Mapping[str, Sent]:
    """When the run's own client sent each request, by its name in the step log; {} if the run has none."""
    try:
        with open_to_read(Path(recording.source).parent / "requests.jsonl") as stream:
            return _by_id(recording, _of_lines(stream.read()))
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _of_lines(text: bytes) -> dict[str, Sent]:
    """By id, from a line for each request."""
    return {str(line["id"]): _sent(line) for line in map(json_object, text.splitlines()) if line["start"]}


def _sent(line: Mapping[str, Any]) -> Sent:
    """A request of `labctl bench`; its times are 0 where they are not known (``labkit.evidence.records``)."""
    responses = line.get("responses", ())
    # One response with a whole answer does not show when its first token was there.
    streamed = len(responses) > 1 or (len(responses) == 1 and line.get("tokens") == 1)
    first = _finite(responses[0][0]) if streamed else None
    due, end = (_finite(line.get(name) or 0) or None for name in ("due", "end"))
    return Sent(_finite(line["start"]), due, end, first)


def _finite(value: Any) -> float:
    """A time. Raises ValueError or TypeError: it is none."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{value} is not a time")
    return number


def _of_vllm_bench(document: Mapping[str, Any]) -> list[Sent]:
    """In the order in which they were sent, which is that of their numbers."""
    every = zip(document["start_times"], document["ttfts"], document["itls"], strict=True)
    return [
        Sent(
            _finite(start),
            None,
            _finite(start + ttft + sum(gaps)) if ttft else None,
            _finite(start + ttft) if ttft else None,
        )
        for start, ttft, gaps in every
    ]


def _own_id(arrival: Arrival) -> str:
    """The id that the client gave its request."""
    id = arrival.id or arrival.name
    if served := VLLM_ID.fullmatch(id):
        return served["chat"] or served["text"]
    return id


def _all(recording: Recording) -> list[Arrival]:
    return [*recording.arrivals, *recording.pending]


def _by_id(recording: Recording, by_id: Mapping[str, Sent]) -> dict[str, Sent]:
    found = {}
    for arrival in _all(recording):
        own = next((id for id in (arrival.id or arrival.name, _own_id(arrival)) if id in by_id), None)
        if own is not None:
            found[arrival.name] = by_id[own]
    return found


def _by_number(recording: Recording, numbered: Sequence[Sent]) -> dict[str, Sent]:
    """The requests of the run of `vllm bench serve` that fits best: they were sent before they arrived."""
    runs: dict[str, dict[str, Sent]] = defaultdict(dict)
    taken: dict[
        tuple[str, int], tuple[float, str]
    ] = {}  # the arrival nearest to its sending: a warm-up has a number too
    for arrival in _all(recording):
        own = NUMBERED.fullmatch(_own_id(arrival))
        if own is None or int(own["number"]) >= len(numbered):
            continue
        run, number = own["run"], int(own["number"])
        way = recording.zero + arrival.at - numbered[number].start
        before = taken.get((run, number))
        if way < -EARLY_S or (before is not None and before[0] <= way):
            continue
        if before is not None:
            del runs[run][before[1]]
        taken[run, number] = way, arrival.name
        runs[run][arrival.name] = numbered[number]

    def fit(run: str) -> tuple[int, float]:
        return len(runs[run]), -sum(way for (other, _), (way, _) in taken.items() if other == run)

    return runs[max(runs, key=fit)] if runs else {}


def _checked(path: Path, recording: Recording, found: dict[str, Sent]) -> dict[str, Sent]:
    if not found:
        raise LabError(
            f"{path} and the recording have no request in common",
            "requests are joined by their ids, and by a clock that both read",
            "name the client's file of this recording, made on the same machine",
            code=UNJOINED,
        )
    received = {arrival.name: recording.zero + arrival.received for arrival in _all(recording)}
    impossible = {name for name, sent in found.items() if sent.start > received[name] + EARLY_S}
    if recording.settings.recorded:  # where a step is over before its tokens are sent
        made: dict[str, float] = {}  # when each request had its first token
        for step in recording.steps:
            for name in itertools.compress(step.ids, step.made):
                made.setdefault(name, recording.zero + step.over - EARLY_S)
        impossible |= {name for name, sent in found.items() if sent.first and sent.first < made.get(name, -math.inf)}
    if impossible:
        raise LabError(
            f"{path} was written by another clock",
            f"{len(impossible):,} of {len(found):,} requests were sent or answered before that can be",
            "run the client on the recorded machine",
            code="client-clock",
        )
    return found
