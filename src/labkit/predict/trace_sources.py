"""Files of other tools as requests for a trace: when each was sent, and how many tokens it had.

- AIPerf's ``profile_export.jsonl``: a JSON object for each request, with ``metadata`` and ``metrics``.
- GuideLLM's ``benchmarks.json``: ``benchmarks``, each with ``requests.successful``.
- The log of vLLM's server with ``--enable-log-requests`` and VLLM_LOGGING_LEVEL=DEBUG; with ``--enable-log-outputs``
  it also has the lengths of answers. Its times are whole seconds: requests of one second are spread over it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit import disk
from labkit.errors import LabError
from labkit.predict import cells
from labsched.recording import Arrival

KNOWN = (
    "a recording, vLLM's log with --enable-log-requests, AIPerf's profile_export.jsonl, or GuideLLM's benchmarks.json"
)
NANO = 1e9


@dataclass(frozen=True)
class Converted:
    """Requests in order of arrival, the first at 0, and sentences on what is not known of them."""

    arrivals: Sequence[Arrival]
    remarks: Sequence[str] = field(default_factory=list)


def convert_trace(path: Path) -> Converted:
    """The requests in a file of another tool. Raises LabError: it is of none, or lacks what a trace needs."""
    try:
        text = disk.read_text(path)
    except (OSError, ValueError) as error:
        raise LabError(f"{path} cannot be read", str(error), KNOWN, code="trace-unreadable") from error
    try:
        converted = _json(text) if text.lstrip().startswith("{") else _log(text)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise LabError(f"{path} cannot be converted", why, KNOWN, code="trace-source-unknown") from error
    if not converted.arrivals:
        raise LabError(f"{path} cannot be converted", "it has no request with an answer", KNOWN, code="trace-empty")
    start = min(arrival.at for arrival in converted.arrivals)
    from_zero = [replace(arrival, at=arrival.at - start) for arrival in converted.arrivals]
    return replace(converted, arrivals=sorted(from_zero, key=lambda arrival: arrival.at))


def _arrival(name: str, at: float, prompt: int, made: int) -> Arrival:
    return Arrival(name, at, 0, prompt, made, made, "length")


def _json(text: str) -> Converted:
    try:
        document = json.loads(text)
    except ValueError:  # an object on each line
        document = json.loads(text.lstrip().splitlines()[0])
    if "benchmarks" in document:
        return _guidellm(document)
    if {"metadata", "metrics"} <= document.keys():
        return _aiperf([json.loads(line) for line in text.splitlines() if line.strip()])
    raise ValueError(f"it has neither 'benchmarks' nor 'metadata' and 'metrics', but {', '.join(list(document)[:4])}")


def _aiperf(rows: Sequence[Mapping[str, Any]]) -> Converted:
    arrivals, left_out = [], 0
    for number, row in enumerate(rows, 1):
        metadata, metrics = row["metadata"], row["metrics"]
        lengths = [metrics.get(name, {}).get("value") for name in ("input_sequence_length", "output_sequence_length")]
        if row.get("error") or metadata.get("was_cancelled") or not all(lengths):
            left_out += 1
        elif metadata.get("benchmark_phase", "profiling") == "profiling":
            prompt, made = (cells.integer_cell({"tokens": length}, "tokens") for length in lengths)
            at = cells.number_cell(metadata, "request_start_ns") / NANO
            arrivals.append(_arrival(str(number), at, prompt, made))
    return Converted(arrivals, _remark(left_out))


def _guidellm(report: Mapping[str, Any]) -> Converted:
    arrivals, left_out = [], 0
    for benchmark in report["benchmarks"]:
        requests = benchmark["requests"]
        left_out += len(requests.get("errored") or ()) + len(requests.get("incomplete") or ())
        for row in requests["successful"]:
            at = cells.number_cell(row["info"]["timings"], "request_start")
            prompt, made = (
                cells.integer_cell(row[name], "text_tokens", 0) for name in ("input_metrics", "output_metrics")
            )
            if prompt and made:
                arrivals.append(_arrival(row["request_id"], at, prompt, made))
            else:
                left_out += 1
    count = len(report["benchmarks"])
    remarks = [f"its {count} benchmarks are one trace, one after the other"] if count > 1 else []
    return Converted(arrivals, [*remarks, *_remark(left_out)])


def _remark(left_out: int) -> list[str]:
    return [f"{left_out:,} requests without an answer are left out"] if left_out else []


TIME = re.compile(r"\b(?:\d{4}-)?(\d\d-\d\d \d\d:\d\d:\d\d)")
CAME = re.compile(r"Received request (\S+?): .*?max_tokens=(\d+|None)")
IDS = re.compile(r"Request (\S+) details: .*prompt_token_ids: \[([^\]]*)\]")
OLD_IDS = re.compile(r"Received request (\S+?): .*prompt_token_ids: \[([^\]]*)\]")  # before the level DEBUG had them
MADE = re.compile(r"Generated response (\S+)(?: \(streaming \w+\))? details: output_token_ids: \[([^\]]*)\]")


def _log(text: str) -> Converted:
    """Arrivals and lengths of the requests in vLLM's log. Raises ValueError: it has no such lines."""
    arrived: dict[str, float] = {}
    limit, prompt, made = dict[str, int](), dict[str, int](), Counter[str]()
    for line in text.splitlines():
        if match := (OLD_IDS.search(line) or IDS.search(line)):
            prompt[match[1]] = _count(match[2])
        if (match := CAME.search(line)) and (time := TIME.search(line)):
            at = datetime.strptime(f"2000-{time[1]}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            arrived[match[1]] = at.timestamp()
            limit[match[1]] = 0 if match[2] == "None" else int(match[2])
        if (match := MADE.search(line)) and "(streaming complete)" not in line:
            made[match[1]] += _count(match[2])
    if not arrived:
        raise ValueError("it has no line 'Received request': vllm serve writes them with --enable-log-requests")
    if not prompt:
        raise ValueError(
            "it does not say how long prompts are: vllm serve does with VLLM_LOGGING_LEVEL=DEBUG and --max-log-len "
            "unset. LABS_RECORD and --scheduler-cls labsched.vllm.RecordingScheduler write lengths and no texts"
        )
    in_second = Counter(arrived.values())
    placed: Counter[float] = Counter()  # how many of a second's requests have their time already
    requests, guessed = [], 0
    for id, second in arrived.items():
        tokens = made[id] or limit[id]
        if not (prompt.get(id) and tokens):
            continue
        guessed += not made[id]
        requests.append(_arrival(id, second + placed[second] / in_second[second], prompt[id], tokens))
        placed[second] += 1
    remarks = ["the log's times are whole seconds: the requests of one second are spread over it"]
    if guessed:
        remarks.append(f"{guessed:,} answers count as long as max_tokens: --enable-log-outputs logs their lengths")
    return Converted(requests, [*remarks, *_remark(len(arrived) - len(requests))])


def _count(ids: str) -> int:
    return ids.count(",") + 1 if ids.strip() else 0
