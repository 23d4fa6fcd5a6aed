"""BLIS's TraceV2: a header in YAML and a row for each request in CSV, as `blis replay` reads them.

The counterpart is ``sim/workload/tracev2.go`` and ``replay.go`` of inference-sim/inference-sim. Its reader finds a
column by its place, so all are written, in its order. A row knows one beginning that its group shares: what two
requests of a group share beyond it is lost.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from labkit.disk import atomic_write
from labkit.predict import cells
from labsched.recording import HASH_BYTES, Arrival, Recording

COLUMNS = """
request_id client_id tenant_id slo_class vllm_priority session_id round_index prefix_group prefix_length streaming
input_tokens output_tokens text_tokens image_tokens audio_tokens video_tokens reason_ratio model deadline_us
server_input_tokens arrival_time_us send_time_us first_chunk_time_us last_chunk_time_us num_chunks status
error_message finish_reason""".split()
NEEDED = ("request_id", "prefix_group", "prefix_length", "input_tokens", "output_tokens", "arrival_time_us", "status")
OTHER_INPUTS = ("image_tokens", "audio_tokens", "video_tokens")
GROUP = 16  # tokens that requests share at the least to be of one group


class BlisRequest(NamedTuple):
    """A row that has an answer.

    Attributes:
        at: seconds.
        group: the requests that share the first ``shared`` tokens of their prompts; "": none.
        prompt: tokens, the shared ones included.
        answer: tokens.
    """

    at: float
    group: str
    shared: int
    prompt: int
    answer: int


def blis_row(row: Mapping[str, str]) -> BlisRequest | None:
    """A row's request; None if it failed or has no answer.

    A row's time is when it was sent, or else when it arrived. Without a
    group, the server's own count of the prompt's tokens wins over the client's.

    Raises:
        ValueError: the row has another form, or inputs other than text.
    """
    answer = cells.integer_cell(row, "output_tokens", 0)
    if row.get("status", "") not in ("", "ok") or not answer:
        return None
    if other := next((name for name in OTHER_INPUTS if cells.integer_cell(row, name, 0)), ""):
        raise ValueError(f"{other} is not 0: text alone can be sent")
    group = row.get("prefix_group", "")
    shared = cells.integer_cell(row, "prefix_length") if group else 0
    prompt = cells.integer_cell(row, "input_tokens")
    if not group:
        prompt = cells.integer_cell(row, "server_input_tokens", 0) or prompt
    if shared < 0 or prompt < 0:
        raise ValueError(f"a number is out of range (prefix {shared}, prompt {prompt})")
    micros = cells.number_cell(row, "send_time_us", 0) or cells.number_cell(row, "arrival_time_us")
    return BlisRequest(micros / 1e6, group, shared, shared + prompt, answer)


def write_blis(header: Path, recording: Recording) -> Path:
    """Write a recording's requests: ``header`` in YAML, and beside it, with ``.csv`` for its ending, the rows.

    Returns:
        The path of the rows.
    """
    rows = header.with_suffix(".csv")
    settings = recording.settings
    server = {
        "type": "triton",
        "max_num_seqs": int(settings.words.get("max_num_sequences") or 0),
        "block_size": settings.block_size,
        "max_model_len": settings.context,
    }
    document = {
        "trace_version": 2,
        "time_unit": "microseconds",
        "mode": "real",
        "warm_up_requests": 0,
        "server": {name: value for name, value in server.items() if value},
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(recording))
    atomic_write(rows, text.getvalue())
    atomic_write(header, yaml.safe_dump(document, sort_keys=False))
    return rows


def _rows(recording: Recording) -> Iterator[dict[str, str | int]]:
    first: dict[str, float] = {}
    for step in recording.rows:
        for name, made in zip(step.batch, step.made, strict=True):
            if made:
                first.setdefault(name, step.over)
    shared = _shared(recording.arrivals)
    for number, arrival in enumerate(recording.arrivals):
        group, length = shared.get(arrival.name, ("", 0))
        yield {
            "request_id": number,
            "tenant_id": arrival.tenant,
            "vllm_priority": arrival.priority,
            "round_index": 0,
            "prefix_group": group,
            "prefix_length": length,
            "streaming": "true",
            "input_tokens": arrival.prompt - length,
            "output_tokens": arrival.made,
            "text_tokens": arrival.prompt - length,
            **dict.fromkeys((*OTHER_INPUTS, "reason_ratio", "deadline_us"), 0),
            "server_input_tokens": arrival.prompt,
            "arrival_time_us": round(arrival.at * 1e6),
            "send_time_us": round(arrival.at * 1e6),
            "first_chunk_time_us": round(first.get(arrival.name, 0) * 1e6),
            "last_chunk_time_us": round(arrival.left_at * 1e6),
            "num_chunks": arrival.made,
            "status": "error" if arrival.cancelled else "ok",
            "finish_reason": _finish_reason(arrival),
        }


def _finish_reason(arrival: Arrival) -> str:
    if arrival.cancelled:
        return "abort"
    return "length" if arrival.why == "length" else "stop"


def _shared(arrivals: Sequence[Arrival]) -> dict[str, tuple[str, int]]:
    """By request: the group of requests with a common prefix, and how many tokens the whole group shares."""
    groups: dict[bytes, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        if arrival.prompt > GROUP and len(arrival.prefixes) >= arrival.prompt * HASH_BYTES:
            groups[arrival.prefixes[: GROUP * HASH_BYTES]].append(arrival)
    shared: dict[str, tuple[str, int]] = {}
    for number, group in enumerate((group for group in groups.values() if len(group) > 1), 1):
        shortest = min(arrival.prompt for arrival in group)
        length = _alike([arrival.prefixes for arrival in group], shortest - 1)  # a suffix stays
        shared |= {arrival.name: (f"prefix-{number}", length) for arrival in group}
    return shared


def _alike(prefixes: Sequence[bytes], most: int) -> int:
    """How many tokens, at most ``most``, all sequences share from their beginning."""
    low, high = GROUP, max(GROUP, most)
    while low < high:  # a token's hash is that of the sequence up to it: equal ones mean equal beginnings
        middle = (low + high + 1) // 2
        end = slice((middle - 1) * HASH_BYTES, middle * HASH_BYTES)
        if len({hashes[end] for hashes in prefixes}) == 1:
            low = middle
        else:
            high = middle - 1
    return low
