"""The lines of a recording: one that cannot have been written is refused where it is read."""

from __future__ import annotations

import binascii
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labsched.errors import LabError
from labsched.log.files import open_to_read
from labsched.log.steplog import REQUEST, SCHEDULER, parse_any_line

MODEL = "tensorrt_llm"
RECORD = "labctl run batching records one, and so does labctl bench inflight-batching"
DAMAGE = (AttributeError, KeyError, OverflowError, TypeError, ValueError, binascii.Error)

REQUIRED_WORDS = (  # without which there is no replay
    "gpt_model_type",
    "batch_scheduler_policy",
    "max_num_sequences",
    "max_tokens_in_paged_kv_cache",
    "max_num_tokens",
    "enable_chunked_context",
    "enable_kv_cache_reuse",
    "speculation",
    "scheduling",
)
WORDS = (  # that a recording holds
    "engine",
    *REQUIRED_WORDS,
    "pace",
    "pace_shape",
    "pace_table",
    "pace_slower",
    "async_scheduling",
    "gather_microseconds",
)
NUMBERS = ("blocks", "block_size", "step_tokens", "context", "vocabulary")
NUMBER_WORDS = ("max_num_sequences", "max_tokens_in_paged_kv_cache", "max_num_tokens")  # or empty
MOST_DIGITS = 18
LISTS = ("tokens", "made", "cached")  # of whole numbers, one for each request of the batch; no `cached`: none was
NAMES = ("ids", "joined", "evicted", "waiting")
LONGEST_S, MOST = 1e9, 2**31
LAST_WALL_S = 1e11  # since the epoch: later is no date


@contextmanager
def damage_as_error(file: Path) -> Iterator[None]:
    """Raises LabError for what is raised of damaged lines of ``file``."""
    try:
        yield
    except DAMAGE as error:
        raise LabError(
            f"{file} is damaged", f"a line lacks or misuses {error}", RECORD, code="step-log-damaged"
        ) from error


def served_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of the last time that the model was loaded and served; [] if the file is not a recording."""
    try:
        with open_to_read(file) as stream:
            texts = stream.read().splitlines()
    except OSError as error:
        raise LabError(
            f"{file} cannot be read", error.strerror or str(error), RECORD, code="recording-unreadable"
        ) from error
    lines = []
    bad = 0  # the number of the first line that is not one of a step log
    for number, text in enumerate(texts, 1):
        if (line := parse_any_line(text)) is not None:
            lines.append(line)
        elif text.strip() and not bad:
            bad = number
    lines = [line for line in lines if line["model"] == MODEL]
    starts: dict[float, int] = {}  # by the time of a line SCHEDULER: a file of a rotated log begins with it again
    for index, line in enumerate(lines):
        if line.get("kind") == SCHEDULER:
            starts.setdefault(line["t"], index)
    if not starts:
        return []
    if bad:
        raise LabError(f"{file} is damaged", f"line {bad} is not a line of a step log", RECORD, code="step-log-damaged")
    if len({(line["instance"], line.get("replica", "")) for line in lines}) > 1:
        raise LabError(
            f"{file} holds several instances of {MODEL}",
            "each has a scheduler of its own",
            "record with one replica",
            code="recording-instances",
        )
    loads = [lines[first:last] for first, last in itertools.pairwise([*starts.values(), len(lines)])]
    served = [load for load in loads if any(line.get("kind") == REQUEST for line in load)]
    if not served:
        return []
    with damage_as_error(file):
        for line in served[-1]:
            check_line(line)
    return served[-1]


def check_line(line: Mapping[str, Any]) -> None:
    """Raises ValueError or KeyError, with the field's name, for a line that a recording cannot have."""
    kind = line["kind"]
    _seconds(line, "t")
    if kind == SCHEDULER:
        words = line["words"]
        require_field(isinstance(words, dict), "words")
        for name in REQUIRED_WORDS:
            require_field(name in words, name)
        for name in NUMBER_WORDS:
            word = str(words[name])
            require_field(not word or (word.isascii() and word.isdigit() and len(word) <= MOST_DIGITS), name)
        require_field(all(is_whole(line[name], 1) for name in NUMBERS), "/".join(NUMBERS))
        require_field(isinstance(line["own"], str | None), "own")
        require_field(is_number(line.get("wall", 0), LAST_WALL_S), "wall")
    elif kind == REQUEST:
        _seconds(line, "arrived")
        if "waited" in line:  # else the time before the scheduler is not recorded
            _seconds(line, "waited")
        for name, least in (("came", 1), ("after", 0), ("left", 0), ("prompt", 1), ("limit", 0), ("made", 0)):
            require_field(is_whole(line[name], least), name)
        require_field(isinstance(line["prefixes"], str), "prefixes")
        require_field(isinstance(line["tenant"], str | None), "tenant")
        require_field(is_whole(line["priority"], -MOST), "priority")
    elif kind in ("step", "change"):
        _check_step(line, whole=kind == "step")


def _check_step(line: Mapping[str, Any], whole: bool) -> None:
    _seconds(line, "dur")
    require_field(is_whole(line["n"], 1), "n")
    require_field(isinstance(line.get("ended", {}), dict), "ended")
    for name in NAMES:
        names = line.get(name, [])
        require_field(isinstance(names, list) and all(isinstance(request, str) for request in names), name)
    if not whole:
        return
    why = line.get("why", "")
    require_field(isinstance(why, str) or (isinstance(why, list) and bool(why)), "why")
    batch = len(line["ids"])
    require_field(line["batch"] == batch and batch > 0, "batch")
    phase = line["phase"]
    require_field(isinstance(phase, str) and len(phase) == batch and {*phase} <= {*"pd"}, "phase")
    require_field(is_whole(line["kv_blocks_used"], 0), "kv_blocks_used")
    for name in ("engine_us", "ahead_us", "queue"):
        require_field(name not in line or is_whole(line[name], 0), name)
    for name in LISTS:
        values = line.get(name, [0] * batch) if name == "cached" else line[name]
        require_field(isinstance(values, list) and len(values) == batch, name)
        require_field(all(is_whole(value, 0) for value in values), name)


def is_whole(value: Any, least: int) -> bool:
    """Whether it is a number that a field with a count may have."""
    return type(value) is int and least <= value < MOST


def is_number(value: Any, below: float) -> bool:
    """Whether it is a number of at least 0 and less than ``below``."""
    return type(value) in (int, float) and 0 <= value < below


def _seconds(line: Mapping[str, Any], name: str) -> None:
    require_field(is_number(line[name], LONGEST_S), name)


def require_field(good: bool, name: str) -> None:
    """Raise ValueError with the field's name, if it is not good."""
    if not good:
        raise ValueError(f"'{name}'")
