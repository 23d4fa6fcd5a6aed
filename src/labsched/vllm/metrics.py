"""Where the time of a request went on average, by vLLM's own `/metrics` at two moments: an answer without a restart.

vLLM counts the times of a request when it has ended (vllm/v1/metrics/loggers.py, stats.py): the whole since its front
end had it, and of that the time in the scheduler's queue, from there to the first token, and from there to the last.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from labsched.errors import LabError

WINDOW_S, LONGEST_WINDOW_S = 60.0, 86_400.0
TIMEOUT_S, MOST_BYTES = 10.0, 4 * 2**20  # of a page: vLLM's has about 0.1 MiB
REMEDY = "give the address of a vLLM that runs, such as http://127.0.0.1:8000/metrics"
LABEL = r'[a-zA-Z_]\w*="(?:[^"\\]|\\.)*"'
SAMPLE = re.compile(rf"(?:vllm:)?(?P<name>\w+)(?:\{{(?P<labels>(?:{LABEL},?)*)\}})? (?P<value>\S+)(?: -?\d+)?")
BOUND = re.compile(r'(?:^|,)le="([^"]*)"')
STARTED = "process_start_time_seconds"
NEVER_FALL = ("_total", "_count", "_sum", "_bucket")
WHOLE, FIRST_TOKEN, USED = "e2e_request_latency_seconds", "time_to_first_token_seconds", "kv_cache_usage_perc"
PHASES, PHASE = ("queue", "prefill", "decode"), "request_{}_time_seconds"
PARTS = {
    "queue": "waiting in the scheduler's queue",
    "prefill": "its prefill and what was computed beside it",
    "decode": "its decoding and what was computed beside it",
    "front_end": "vLLM's front end, before the scheduler and after it",
}
COUNTED = {
    "preemptions": "{:,.0f} preemptions, which a lack of KV blocks brings",
    "cached_share": "{:.0%} of the prompts' tokens from the prefix cache",
    "running": "{:,.0f} requests running at the end",
    "waiting": "{:,.0f} waiting at the end",
    "kv_cache_used": "{:.0%} of the KV cache in use at the end",
}
UNKNOWN = (
    "These counters do not say whether a request waited for a slot, for memory or for room in a step, nor behind whom, "
    "what the slowest ones waited for, who left without an answer, or what another setting would do. A recording says "
    "it, with labsched in vLLM's environment:"
)
RECORDER = (
    "    LABS_RECORD=/var/log/labs vllm serve MODEL --scheduler-cls labsched.vllm.RecordingScheduler\n"
    "    python -m labsched explain /var/log/labs"
)
Samples = Mapping[tuple[str, str], float]  # by name and bound of a bucket, over all engines


def is_metrics_url(source: str) -> bool:
    """Return whether what is to be explained is a page of metrics, and no folder."""
    return source.lower().startswith(("http://", "https://"))


def explain_metrics(
    url: str, window_s: float | None = None, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Say where the time went of the requests of a vLLM that ended between two looks at its metrics.

    Args:
        window_s: seconds between the two looks; None: WINDOW_S.
        tell: is told how long it waits.

    Returns: the document of `explain --json`. Its ``sentences`` are the answer for a person.

    Raises LabError: the page cannot be read or is not vLLM's, vLLM was restarted in between, or no request ended.
    """
    window_s = WINDOW_S if window_s is None else window_s
    if not 0 < window_s <= LONGEST_WINDOW_S:
        why = f"it has more than 0 s, and at most {LONGEST_WINDOW_S:,.0f}"
        raise LabError(f"{window_s} s are no window", why, "say --window 60", code="metrics-window")
    before = _samples(url)
    tell(f"{window_s:,.0f} s until the second look")
    time.sleep(window_s)
    after = _samples(url)
    fell = any(after.get(key, 0.0) < value for key, value in before.items() if key[0].endswith(NEVER_FALL))
    if fell or before.get((STARTED, "")) != after.get((STARTED, "")):
        what = f"the vLLM at {url} was restarted in the window"
        raise LabError(what, "its counters went back", "look again", code="metrics-restarted")

    def more(name: str, bound: str = "") -> float:
        return after.get((name, bound), 0.0) - before.get((name, bound), 0.0)

    running, waiting = after.get(("num_requests_running", "")), after.get(("num_requests_waiting", ""))
    if not (ended := more(f"{WHOLE}_count")):
        there = f"{running or 0:,.0f} run and {waiting or 0:,.0f} wait"
        what = f"no request ended in {window_s:,.0f} s"
        raise LabError(what, there, "look for longer: --window 600", code="metrics-idle")
    parts = {part: 1e3 * more(f"{PHASE.format(part)}_sum") / ended for part in PHASES}
    parts["front_end"] = max(0.0, 1e3 * more(f"{WHOLE}_sum") / ended - sum(parts.values()))
    first_tokens, queries = more(f"{FIRST_TOKEN}_count"), more("prefix_cache_queries_total")
    found: dict[str, Any] = {
        "url": url,
        "window_s": window_s,
        "requests": round(ended),
        "parts_ms": parts,
        "first_tokens": round(first_tokens),
        "ttft_ms": 1e3 * more(f"{FIRST_TOKEN}_sum") / first_tokens if first_tokens else None,
        "ttft_p99_ms": _p99({bound: more(name, bound) for name, bound in after if name == f"{FIRST_TOKEN}_bucket"}),
        "preemptions": more("num_preemptions_total") if ("num_preemptions_total", "") in after else None,
        "cached_share": more("prefix_cache_hits_total") / queries if queries else None,
        "running": running,
        "waiting": waiting,
        "kv_cache_used": after.get((USED, "")),
    }
    return {**found, "sentences": _sentences(found)}


def _sentences(found: Mapping[str, Any]) -> list[str]:
    """Where the time went, what else is known, what is not, and the commands that record it."""
    parts, whole = found["parts_ms"], sum(found["parts_ms"].values())
    longest = sorted(parts, key=lambda part: -parts[part])
    shares = [f"{parts[part] / whole if whole else 0.0:.0%} {PARTS[part]}" for part in longest]
    told = [
        f"{found['url']}: {found['requests']:,} requests ended in {found['window_s']:,.0f} s, after {whole:,.0f} ms on "
        f"average: {', '.join(shares[:-1])}, and {shares[-1]}."
    ]
    if p99 := found["ttft_p99_ms"]:
        between = f"above {p99[0]:,.0f}" if p99[1] is None else f"between {p99[0]:,.0f} and {p99[1]:,.0f}"
        told.append(
            f"TTFT of {found['first_tokens']:,} requests is {found['ttft_ms']:,.0f} ms on average, p99 {between} ms."
        )
    if counted := [words.format(found[name]) for name, words in COUNTED.items() if found[name] is not None]:
        told.append(f"Also counted: {'; '.join(counted)}.")
    return [*told, UNKNOWN, RECORDER]


def _p99(counts: Mapping[str, float]) -> tuple[float, float | None] | None:
    """The bounds (ms) between which 99 % of a histogram lie; the last bucket has no upper one. None: it is empty."""
    below, most = 0.0, max(counts.values(), default=0.0)
    for bound, count in sorted((float(bound), count) for bound, count in counts.items()):
        if most and count >= 0.99 * most:
            return 1e3 * below, None if math.isinf(bound) else 1e3 * bound
        below = bound
    return None


def _samples(url: str) -> Samples:
    """What a page counts. Raises LabError: it cannot be read, or is not of a vLLM that has these times."""
    found: dict[tuple[str, str], float] = {}
    try:
        for line in _page(url).decode().splitlines():
            if not line.startswith(("vllm:", STARTED)):
                continue
            if (sample := SAMPLE.fullmatch(line)) is None:
                raise ValueError(f"{line[:80]!r} is no sample")
            bound = BOUND.search(sample["labels"] or "")
            name, value = sample["name"], float(sample["value"])
            key = name, f"{float(bound[1])}" if bound else ""
            if math.isfinite(value):
                found[key] = max(found.get(key, 0.0), value) if name == USED else found.get(key, 0.0) + value
        needed = [
            f"{name}_{what}" for name in (WHOLE, FIRST_TOKEN, *map(PHASE.format, PHASES)) for what in ("sum", "count")
        ]
        if missing := [name for name in needed if (name, "") not in found]:
            raise ValueError(f"it has no vllm:{missing[0]}")
    except ValueError as error:
        raise LabError(f"{url} is not the metrics of a vLLM", str(error), REMEDY, code="metrics-foreign") from error
    return found


def _page(url: str) -> bytes:
    """The body of a page. Raises LabError: it cannot be read in TIMEOUT_S, or is longer than MOST_BYTES."""
    done: list[bytes | Exception] = []

    def read() -> None:
        try:
            _ = urlsplit(url).port  # one above 65,535 is refused: the C library would ask another port, modulo 65,536
            with build_opener(ProxyHandler({})).open(url, timeout=TIMEOUT_S) as response:
                body = response.read(MOST_BYTES + 1)
                if len(body) > MOST_BYTES or response.length:
                    raise OSError(f"it broke off, or is longer than {MOST_BYTES >> 20} MiB")
                done.append(body)
        except (OSError, ValueError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()  # it keeps its connection
            done.append(error)

    reader = threading.Thread(target=read, daemon=True)  # a server may send a byte now and then for ever
    reader.start()
    reader.join(TIMEOUT_S)
    body = done[0] if done else TimeoutError(f"it was not there after {TIMEOUT_S:.0f} s")
    if isinstance(body, Exception):
        why = str(body.reason) if type(body) is URLError else str(body)
        raise LabError(f"{url} cannot be read", why, REMEDY, code="metrics-unreadable") from body
    return body
