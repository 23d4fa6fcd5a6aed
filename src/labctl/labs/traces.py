"""Traces of requests: when each came, and how many tokens it had. Two formats are read and written.

- A CSV of one's own: ``arrival_s,prompt_tokens,output_tokens`` and perhaps ``tenant``, in any order of columns.
- Mooncake's, a JSON line per request, with hashes of the blocks of its prompt: "Mooncake: Trading More Storage for Less
  Computation" (FAST 2025), FAST25-release/traces in its repository. Equal `hash_ids` mean equal prompts up to the end
  of that block. Neither the length of a block nor the unit of the times is in the file, so the reader is told both.

What a file says twice is compared, and a column that is not known is refused: it may change what a row means. A request
without an answer (0 tokens, or none said) failed in the service, and is left out. A byte order mark and numbers in
quotes are taken: spreadsheets write them.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, shake_128
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from labkit.disk import atomic_write
from labkit.errors import LabError
from labsched.log.settings import HASH_BYTES
from labsched.replay.recording import Arrival

BLOCK = 512  # tokens of a block, in the Mooncake traces that are written; their times are in ms
SMALLER = 16  # the rule by which a trace is scaled to a laptop: every length over 16, at least 1
LONGEST = 2**20  # characters of a line
MOST = 2**20  # tokens of a request: Mooncake's longest have 2**17
NOTHING = (None, "")
MOST_DIGITS = 4000  # Python converts no longer ones; such a number is out of every range
UNITS = {"ms": 1e-3, "s": 1.0}  # seconds in a unit of Mooncake's timestamps
OWN = ("arrival_s", "prompt_tokens", "output_tokens")
OWN_MORE = ("tenant",)
MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")
SAMPLES = {  # the beginning of each format
    "your own CSV": ",".join(OWN),
    "Mooncake": '{"timestamp": 0, "input_length": 758, "output_length": 500, "hash_ids": [0, 1]}',
}
FORMS = "it begins like one of these: " + "; ".join(f"{sample}  ({name})" for name, sample in SAMPLES.items())


@dataclass(frozen=True)
class MooncakeForm:
    """What a Mooncake trace does not say: the tokens of a block, and the unit of its times. None is not known."""

    block_size: int | None = None
    unit: str | None = None


def read_trace(
    path: Path,
    count: int | None = None,
    left_out: Callable[[int], object] = lambda rows: None,
    form: MooncakeForm | None = None,
) -> list[Arrival]:
    """The first ``count`` requests of a trace, or all of them; the first is at 0.

    Args:
        left_out: called with the number of rows without an answer, where there are some.
        form: of a Mooncake trace.

    Raises:
        LabError: it cannot be read, a line is of another form (the line is named), or ``form`` lacks what it needs.
    """
    arrivals: list[Arrival] = []
    unanswered = 0
    number, latest = 1, -math.inf
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _lines(file)
            first = next((line for line in lines if line.strip(" \t\r\n,;")), "")
            parse, rows = _form(path, first, lines, form)
            for number, row in rows:
                arrival = parse(row, number)
                if arrival is None:
                    unanswered += 1
                    continue
                if arrival.at < latest:
                    raise ValueError(f"it came {latest - arrival.at:g} s before the request above it; sort the file")
                latest = arrival.at
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
    return [replace(arrival, at=arrival.at - arrivals[0].at) for arrival in arrivals]


def describe_trace(arrivals: Sequence[Arrival]) -> str:
    """How many requests in how many seconds: times in another unit are seen by it."""
    span = arrivals[-1].at if arrivals else 0.0
    rate = f", {len(arrivals) / span:,.3g} a second" if span else ""
    return f"{len(arrivals):,} requests in {span:,.6g} s{rate}"


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(LONGEST):
        if len(line) == LONGEST:
            raise ValueError("it is too long")
        yield line


def _form(
    path: Path, first: str, lines: Iterator[str], form: MooncakeForm | None
) -> tuple[Callable[[Any, int], Arrival | None], Iterator[tuple[int, Any]]]:
    """How a row is read, and the rows with the numbers of their lines, by what the first line looks like."""
    if first.lstrip().startswith("{"):
        filled = ((number, line) for number, line in enumerate(chain([first], lines), 1) if line.strip())
        told = form or MooncakeForm()
        if told.unit is None:
            raise LabError(
                f"the unit of the times in {path} is not known",
                "a Mooncake trace does not state it, and a wrong one makes its load 1,000 times too fast or too slow",
                "--unit ms, as in Mooncake's own traces, or --unit s",
                code="trace-unit-missing",
            )
        scale = UNITS[told.unit]
        return lambda line, number: _mooncake(line, number, path, scale, told.block_size), filled
    if form and form != MooncakeForm():
        raise LabError(
            f"{path} is no Mooncake trace",
            "--block-size and --unit are for those; a CSV has its times in seconds and no hashes",
            "without them, if it is a CSV of your own",
            code="trace-form-unknown",
        )
    header = [name.strip() for name in next(csv.reader([first]), [])]
    while header and not header[-1]:
        header.pop()  # spreadsheets write empty columns
    if not set(OWN) <= set(header):
        raise ValueError("it begins like no format that is known here")
    _refuse_unknown(header, (*OWN, *OWN_MORE), "column")
    if len(set(header)) < len(header):
        raise ValueError("two columns have one name")
    rows = csv.DictReader(lines, header)
    return _own, ((rows.line_num + 1, row) for row in rows if any(map(str.strip, _cells(row))))


def _refuse_unknown(names: Iterable[str], known: Sequence[str], what: str) -> None:
    """Raises ValueError for a name that is not known here: it may change what the others mean."""
    unknown = [name for name in names if name not in known]
    if unknown:
        known_ones = ", ".join(known)
        raise ValueError(f"the {what} {unknown[0][:40]!r} is not understood (known: {known_ones}); see what it means")


def _cells(row: Mapping[Any, Any]) -> list[str]:
    """The cells of a row of csv.DictReader, also those beyond the last column; not those that a short one lacks."""
    own = [cell for name, cell in row.items() if name is not None and cell is not None]
    return [*own, *row.get(None, ())]


def _in_words(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return "it is not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)


def _arrival(number: int, at: float, prompt: int, limit: int) -> Arrival:
    if not (0 <= at < math.inf and 1 <= prompt <= MOST and 1 <= limit <= MOST):
        raise ValueError(f"a number is out of range (time {at:g} s, prompt {prompt}, answer {limit})")
    return Arrival(str(number), at, 0, prompt, limit, limit, "length", prefixes=hashes(f"request {number}", prompt))


def _mooncake(line: str, number: int, path: Path, scale: float, block_size: int | None) -> Arrival | None:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    _refuse_unknown(row, MOONCAKE, "field")
    ids = row.get("hash_ids")
    if not isinstance(ids, list | None):
        raise ValueError("hash_ids is not a list")
    blocks = [integer_cell({"hash_ids": block}, "hash_ids") for block in ids or ()]
    if not (answer := _answer(row, "output_length")):
        return None
    at = number_cell(row, "timestamp") * scale
    arrival = _arrival(number, at, integer_cell(row, "input_length"), answer)
    if not blocks:
        return arrival  # its prompt is shared with no other
    if block_size is None:
        raise LabError(
            f"the length of a block in {path} is not known",
            f"a Mooncake trace does not state it; {_sizes_that_fit(len(blocks), arrival.prompt)} fit its line {number}",
            "--block-size 512, as in Mooncake's own traces; 16 and 64 are others'",
            code="trace-block-size-missing",
        )
    if len(blocks) != math.ceil(arrival.prompt / block_size):
        raise ValueError(
            f"{len(blocks)} hash_ids are not the blocks of {block_size} of {arrival.prompt} tokens "
            f"(input_length); {_sizes_that_fit(len(blocks), arrival.prompt)} fit it"
        )
    return replace(arrival, prefixes=_prefixes(blocks, arrival.prompt, block_size))


def _sizes_that_fit(blocks: int, prompt: int) -> str:
    """The lengths of a block with which a prompt has so many blocks, in words."""
    if blocks == 1:
        return f"blocks of {prompt} or more tokens"
    least, most = math.ceil(prompt / blocks), math.ceil(prompt / (blocks - 1)) - 1
    return f"blocks of {least} to {most} tokens" if least <= most else "blocks of no length"


def _answer(row: Mapping[str, Any], name: str) -> int:
    """The tokens of a row's answer; 0 if the field says nothing. Raises ValueError: the row has no such field."""
    if name not in row:
        raise ValueError(f"it has no {name}")
    return integer_cell(row, name, missing=0)


def _own(row: Mapping[Any, Any], number: int) -> Arrival | None:
    if any(map(str.strip, row.get(None, ()))):
        raise ValueError("it has more cells than the first line has columns")
    row = {name: cell for name, cell in row.items() if cell is not None}
    at, prompt, answer = OWN
    if not (tokens := _answer(row, answer)):
        return None
    arrival = _arrival(number, number_cell(row, at), integer_cell(row, prompt), tokens)
    return replace(arrival, tenant=row.get("tenant") or None)


def write_trace_csv(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write requests that were answered as a CSV of one's own; with tenants only where there are some."""
    tenants = any(arrival.tenant is not None for arrival in arrivals)
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*OWN, *(["tenant"] if tenants else [])])
    for one in sorted(arrivals, key=lambda arrival: arrival.at):
        if one.made:
            rows.writerow([round(one.at, 6), one.prompt, one.made, *([one.tenant] if tenants else [])])
    atomic_write(path, out.getvalue())


def write_mooncake_trace(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write requests as a Mooncake trace: blocks of ``BLOCK`` tokens, times in ms. Hashes become numbers from 0, in
    order of appearance; where a prompt is not known to a block's end, no other has that block.
    """
    numbers: dict[object, int] = {}
    lines = []
    for arrival in sorted(arrivals, key=lambda arrival: arrival.at):
        size = BLOCK * HASH_BYTES
        prompt = arrival.prefixes[: arrival.prompt * HASH_BYTES]
        ends = [min(end, arrival.prompt * HASH_BYTES) for end in range(size, arrival.prompt * HASH_BYTES + size, size)]
        keys = [blake2b(prompt[:end]).digest() if end <= len(prompt) else (arrival.name, end) for end in ends]
        ids = [numbers.setdefault(key, len(numbers)) for key in keys if prompt]
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


def hashes(key: str, tokens: int) -> bytes:
    """Make a hash for each of the first tokens of a text, of ``HASH_BYTES`` each; ``key`` stands for the text.

    More tokens of the same text begin with the same hashes.
    """
    return shake_128(key.encode()).digest(tokens * HASH_BYTES)


def _prefixes(blocks: Sequence[int], prompt: int, size: int) -> bytes:
    """A hash for each token of a prompt that has these blocks of ``size`` tokens."""
    starts = zip(range(0, prompt, size), blocks, strict=True)
    return b"".join(hashes(f"{block} at {at}", min(size, prompt - at)) for at, block in starts)


def integer_cell(row: Mapping[str, Any], name: str, missing: int | None = None) -> int:
    """A field's whole number; ``missing`` is for a field that is absent or empty.

    Raises ValueError, in words: the field is missing, or not a whole number.
    """
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # a hash may have more digits than a float keeps
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value[:MOST_DIGITS])
    value = number_cell(row, name, missing)
    if not value.is_integer():
        raise ValueError(f"{name} is {_shown(row[name])}, and no whole number")
    return int(value)


def number_cell(row: Mapping[str, Any], name: str, missing: float | None = None) -> float:
    """The same for any finite number."""
    value = row.get(name)
    if value in NOTHING:
        if missing is None:
            raise ValueError(f"it has no {name}")
        return float(missing)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {_shown(value)}, and no number") from None
    return number


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
