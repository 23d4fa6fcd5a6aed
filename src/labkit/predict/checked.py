"""Whether a line of a step log can have been written: a damaged one is refused where it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.evidence.steplog import REQUEST, SCHEDULER

NUMBERS = ("blocks", "block_size", "step_tokens", "context", "vocabulary")
LISTS = ("tokens", "made", "cached")  # of whole numbers, one for each request of the batch
NAMES = ("ids", "joined", "evicted", "waiting")
LONGEST_S, MOST = 1e9, 2**31


def check(line: Mapping[str, Any]) -> None:
    """Raises ValueError or KeyError, with the field's name, for a line that a recording cannot have."""
    kind = line["kind"]
    _seconds(line, "t")
    if kind == SCHEDULER:
        _require(isinstance(line["words"], dict), "words")
        _require(all(_whole(line[name], 1) for name in NUMBERS), "/".join(NUMBERS))
    elif kind == REQUEST:
        _seconds(line, "arrived")
        if "waited" in line:
            _seconds(line, "waited")
        for name, least in (("came", 1), ("after", 0), ("left", 0), ("prompt", 1), ("limit", 0), ("made", 0)):
            _require(_whole(line[name], least), name)
        _require(isinstance(line["prefixes"], str), "prefixes")
        _require(_whole(line["priority"], -MOST), "priority")
    elif kind in ("step", "change"):
        _check_step(line, whole=kind == "step")


def _check_step(line: Mapping[str, Any], whole: bool) -> None:
    _seconds(line, "dur")
    _require(_whole(line["n"], 1), "n")
    _require(isinstance(line.get("ended", {}), dict), "ended")
    for name in NAMES:
        names = line.get(name, [])
        _require(isinstance(names, list) and all(isinstance(one, str) for one in names), name)
    if not whole:
        return
    batch = len(line["ids"])
    _require(line["batch"] == batch and batch > 0, "batch")
    _require(isinstance(line["phase"], str) and len(line["phase"]) == batch and {*line["phase"]} <= {*"pd"}, "phase")
    _require(_whole(line["kv_blocks_used"], 0), "kv_blocks_used")
    for name in LISTS:
        values = line["tokens"] if name == "tokens" else line.get(name, [0] * batch)
        good = isinstance(values, list) and len(values) == batch and all(_whole(one, 0) for one in values)
        _require(good, name)


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < MOST


def _seconds(line: Mapping[str, Any], name: str) -> None:
    value = line[name]
    _require(type(value) in (int, float) and 0 <= value < LONGEST_S, name)


def _require(good: bool, name: str) -> None:
    if not good:
        raise ValueError(f"'{name}'")
