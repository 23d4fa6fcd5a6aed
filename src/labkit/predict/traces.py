"""Traces of real services: when requests came, and how many tokens each had. Six formats are read, three are written.

- One's own, CSV: ``arrival_s,prompt_tokens,output_tokens`` and perhaps ``tenant``, in any order of columns.
- Mooncake's, a JSON line per request, with hashes of the prompt's blocks of 512 tokens: "Mooncake: Trading More Storage
  for Less Computation" (FAST 2025), FAST25-release/traces in its repository. Equal `hash_ids` mean equal prompts up to
  the end of that block.
- Qwen-Bailian's, the same with times in seconds and blocks of 16 tokens ("KVCache Cache in the Wild", USENIX ATC 2025;
  alibaba-edu/qwen-bailian-usagetraces-anon).
- Azure's LLM inference traces, CSV (Patel et al., "Splitwise", ISCA 2024; Azure/AzurePublicDataset).
- BurstGPT, CSV (Wang et al., KDD 2025; HPMLL/BurstGPT).
- The rows of BLIS's TraceV2, CSV (``labkit/predict/blis.py``).

A request without an answer (0 tokens, or none said) failed in the service, and is left out. A byte order mark and
numbers in quotes are taken: spreadsheets write them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.predict import blis, cells
from labsched.recording import HASH_BYTES, Arrival, Recording

BLOCK, SMALL_BLOCK = 512, 16  # tokens: Mooncake's, Bailian's
SMALLER = 16  # the rule by which a trace is scaled to a laptop: every length over 16, at least 1
LONGEST = 2**20  # characters of a line
MOST = 2**20  # tokens of a request: Mooncake's longest have 2**17
SAMPLES = {  # the beginning of each format
    "your own CSV": "arrival_s,prompt_tokens,output_tokens",
    "Mooncake": '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}',
    "Bailian": '{"chat_id": 1, "timestamp": 0.1, "input_length": 40, "output_length": 20, "hash_ids": [0]}',
    "Azure": "TIMESTAMP,ContextTokens,GeneratedTokens",
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "BLIS's TraceV2": ",".join(blis.NEEDED),
}
FORMS = "it begins like one of these: " + "; ".join(f"{sample}  ({name})" for name, sample in SAMPLES.items())


def find_trace(path: Path, shipped: Path) -> Path:
    """The file, or the cut in the folder ``shipped`` that is called so (scripts/cut_traces.py)."""
    named = [] if path.exists() or len(path.parts) > 1 else sorted(shipped.glob(f"{path}.[cj]s*"))
    return named[0] if named else path


def read_trace(
    path: Path, count: int | None = None, left_out: Callable[[int], object] = lambda rows: None
) -> list[Arrival]:
    """The first ``count`` requests of a trace, or all of them; the first is at 0.

    Args:
        left_out: called with the number of rows without an answer, where there are some.

    Raises:
        LabError: it cannot be read, or a line is of another form; the line is named.
    """
    arrivals: list[Arrival] = []
    unanswered = 0
    number = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _lines(file)
            first = next((line for line in lines if line.strip(" \t\r\n,;")), "")
            parse, rows = _form(first, lines)
            for number, row in rows:
                arrival = parse(row, number)
                if arrival is None:
                    unanswered += 1
                else:
                    arrivals.append(arrival)
                if len(arrivals) == count:
                    break
    except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else f"line {number}: {_in_words(error)}"
        raise LabError(f"{path} cannot be read as a trace", str(why), FORMS, code="trace-unreadable") from error
    if not arrivals:
        why = f"none of its {unanswered} requests has an answer" if unanswered else "it has no request"
        raise LabError(f"{path} cannot be read as a trace", why, FORMS, code="trace-unreadable")
    if unanswered:
        left_out(unanswered)
    start = min(arrival.at for arrival in arrivals)
    from_zero = [replace(arrival, at=arrival.at - start) for arrival in arrivals]
    return sorted(from_zero, key=lambda arrival: arrival.at)


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(LONGEST):
        if len(line) == LONGEST:
            raise ValueError("it is too long")
        yield line


def _form(first: str, lines: Iterator[str]) -> tuple[Callable[[Any, int], Arrival | None], Iterator[tuple[int, Any]]]:
    """How a row is read, and the rows with the numbers of their lines, by what the first line looks like."""
    if first.lstrip().startswith("{"):
        filled = ((number, line) for number, line in enumerate(chain([first], lines), 1) if line.strip())
        return _mooncake, filled
    header = [name.strip() for name in next(csv.reader([first]), [])]
    for needed, parse in ((OWN, _own), (AZURE, _azure), (BURSTGPT, _burstgpt), (blis.NEEDED, _blis)):
        if set(needed) <= set(header):
            rows = enumerate(map(_complete, csv.DictReader(lines, header)), 2)
            return parse, ((number, row) for number, row in rows if any(map(str.strip, row.values())))
    raise ValueError("it begins like no format that is known here")


def _complete(row: dict[str, str]) -> dict[str, str]:
    """A row of CSV, without the columns that a short one lacks and the cells that a long one has beyond them."""
    return {name: cell for name, cell in row.items() if name is not None and cell is not None}


def _in_words(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return "it is not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)


def _arrival(number: int, at: float, prompt: int, limit: int, blocks: Sequence[int] = (), size: int = BLOCK) -> Arrival:
    if not (0 <= at < math.inf and 1 <= prompt <= MOST and 1 <= limit <= MOST):
        raise ValueError(f"a number is out of range (time {at:g} s, prompt {prompt}, answer {limit})")
    return Arrival(str(number), at, 0, prompt, limit, limit, "length", prefixes=_prefixes(blocks, prompt, number, size))


def _mooncake(line: str, number: int) -> Arrival | None:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    ids = row.get("hash_ids")
    if not isinstance(ids, list | None):
        raise ValueError("hash_ids is not a list")
    blocks = [cells.integer_cell({"hash_ids": block}, "hash_ids") for block in ids or ()]
    if not (answer := _answer(row, "output_length")):
        return None
    at = cells.number_cell(row, "timestamp")
    at, size = (at, SMALL_BLOCK) if "chat_id" in row else (at / 1e3, BLOCK)
    return _arrival(number, at, cells.integer_cell(row, "input_length"), answer, blocks, size)


def _answer(row: Mapping[str, Any], name: str) -> int:
    """The tokens of a row's answer; 0 if the field says nothing. Raises ValueError: the row has no such field."""
    if name not in row:
        raise ValueError(f"it has no {name}")
    return cells.integer_cell(row, name, missing=0)


OWN = ("arrival_s", "prompt_tokens", "output_tokens")


def _own(row: dict[str, str], number: int) -> Arrival | None:
    at, prompt, answer = OWN
    if not (tokens := _answer(row, answer)):
        return None
    arrival = _arrival(number, cells.number_cell(row, at), cells.integer_cell(row, prompt), tokens)
    return replace(arrival, tenant=row.get("tenant") or "")


AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _azure(row: dict[str, str], number: int) -> Arrival | None:
    time, prompt, answer = AZURE
    try:
        at = datetime.fromisoformat(row.get(time, ""))
    except ValueError:
        raise ValueError(f"{time} is {row.get(time, '')!r}, and no time") from None
    if not (tokens := _answer(row, answer)):
        return None
    if not at.tzinfo:
        at = at.replace(tzinfo=UTC)
    return _arrival(number, at.timestamp(), cells.integer_cell(row, prompt), tokens)


BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def _burstgpt(row: dict[str, str], number: int) -> Arrival | None:
    time, prompt, answer = BURSTGPT
    if not (tokens := _answer(row, answer)):
        return None
    return _arrival(number, cells.number_cell(row, time), cells.integer_cell(row, prompt), tokens)


def _blis(row: dict[str, str], number: int) -> Arrival | None:
    if (request := blis.blis_row(row)) is None:
        return None
    arrival = _arrival(number, request.at, request.prompt, request.answer)
    beginning = hashes(f"prefix {request.group}", 0, request.shared)
    beginning += arrival.prefixes[request.shared * HASH_BYTES :]
    return replace(arrival, prefixes=beginning, tenant=row.get("tenant_id") or "")


def export(path: Path, recording: Recording) -> list[Path]:
    """Write a recording's requests as a Mooncake trace (``.jsonl``), a CSV of one's own, or BLIS's TraceV2 (``.yaml``).

    Returns: the files written.

    Raises:
        LabError: the file has another ending.
    """
    if path.suffix == ".jsonl":
        write_mooncake_trace(path, recording.arrivals)
        return [path]
    if path.suffix == ".yaml":
        return [path, blis.write_blis(path, recording)]
    if path.suffix == ".csv":
        write_trace_csv(path, recording.arrivals)
        return [path]
    raise LabError(
        f"no trace format ends in '{path.suffix}'",
        str(path),
        "FILE.csv, FILE.jsonl (Mooncake) or FILE.yaml (TraceV2)",
        code="trace-form-unknown",
    )


def write_trace_csv(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write requests that were answered as a CSV of one's own; with tenants only where there are some."""
    tenants = any(arrival.tenant for arrival in arrivals)
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*OWN, *(["tenant"] if tenants else [])])
    for one in arrivals:
        if one.made:
            rows.writerow([round(one.at, 6), one.prompt, one.made, *([one.tenant] if tenants else [])])
    atomic_write(path, out.getvalue())


def write_mooncake_trace(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write requests as a Mooncake trace; hashes become numbers from 0, in order of appearance."""
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


def scale_lengths(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same requests, every length divided by ``SMALLER``: rounded up for prompts, down to at least 1 for answers.

    Of the hashes every ``SMALLER``-th stays, so that prompts share the same part of their beginnings. Times stay.
    """
    scaled = []
    for arrival in arrivals:
        prompt, limit = math.ceil(arrival.prompt / SMALLER), max(1, arrival.limit // SMALLER)
        starts = range((SMALLER - 1) * HASH_BYTES, arrival.prompt * HASH_BYTES, SMALLER * HASH_BYTES)
        parts = [arrival.prefixes[start : start + HASH_BYTES] for start in starts]
        kept = b"".join(parts)[: prompt * HASH_BYTES]
        scaled.append(replace(arrival, prompt=prompt, limit=limit, made=limit, prefixes=kept))
    return scaled


# Of GitHub's coding agents (Azure/AzurePublicDataset, GitHubCopilotCodingAgentDataset2026): 7.83 model calls a turn,
# 86 % of the prompts' tokens cached, 128 of them for each token of an answer. The prompts are shorter than theirs, of
# 8,000 tokens on average: by the rule above a laptop's model holds them.
CALLS, SYSTEM, TASK, RESULT, RATIO = 8, 3200, 800, 1200, 128
TOOL_S, SESSION_S = 4.0, 8.0  # mean seconds between the calls of a session, and between sessions


def agents(count: int, seed: int = 0) -> list[Arrival]:
    """``count`` requests of coding agents: sessions of ``CALLS`` calls, whose prompts grow by each tool's result.

    All prompts begin with one system prompt, and those of a session with the prompt before. Gaps are exponential.
    """
    rng = random.Random(seed)
    calls: list[tuple[float, int, int]] = []  # when, session, number of the call
    began = 0.0
    sessions = math.ceil(count / CALLS)
    for session in range(sessions):
        at = began
        for call in range(CALLS):
            calls.append((at, session, call))
            at += rng.expovariate(1 / TOOL_S)
        began += rng.expovariate(1 / SESSION_S)
    arrivals = []
    longest = SYSTEM + TASK + (CALLS - 1) * RESULT
    system = hashes("agents", 0, SYSTEM)
    own = [hashes(f"agents {seed} {session}", SYSTEM, longest) for session in range(sessions)]
    for number, (at, session, call) in enumerate(sorted(calls)[:count], 1):
        prompt = SYSTEM + TASK + call * RESULT
        answer = SMALLER * max(1, round(prompt / RATIO / SMALLER))  # whole when scaled
        prefixes = (system + own[session])[: prompt * HASH_BYTES]
        arrivals.append(Arrival(str(number), at, 0, prompt, answer, answer, "length", prefixes=prefixes))
    return arrivals


def hashes(key: str, begin: int, end: int) -> bytes:
    """A hash for each token from ``begin`` to ``end`` of a text; ``key`` stands for the text."""
    return b"".join(blake2b(f"{key} {at}".encode(), digest_size=HASH_BYTES).digest() for at in range(begin, end))


def _prefixes(blocks: Sequence[int], prompt: int, number: int, size: int) -> bytes:
    """A hash for each token of a prompt; past the trace's own blocks they are equal to no other request's."""
    known = min(prompt, size * len(blocks))
    parts = [
        hashes(str(block), at, min(at + size, known)) for at, block in zip(range(0, known, size), blocks, strict=False)
    ]
    return b"".join([*parts, hashes(f"request {number}", known, prompt)])
