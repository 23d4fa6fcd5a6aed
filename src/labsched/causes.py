"""The parts of each request's time: what its TTFT and its TPOT consist of, and which setting would change that.

Every moment between a request's sending and its last token belongs to one part, so that the parts add up to the whole.
A step in which the request waits belongs to the scheduler's reason. A step that computes the request is divided: the
cost of other requests' prompts, by the step-time model, is one part, and the rest is the request's own.

If the machine was held up, the time that a step took beyond the model is a part of its own, for running and for
waiting requests. Later requests count it too: a queue at that time is late by as much until it is empty.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from labsched.errors import LabError
from labsched.recording import Recording, SchedulerSettings, Sent, StepRow
from labsched.steptime import HELD_UP, StepFeatures, StepTime

LATE, TRITON, IN_PROGRESS = "client late", "waiting in Triton", "the step in progress"
HELD = "machine held up"
NO_SLOT, NO_BLOCK, NO_TOKENS, CLOSED = "no slot", "no KV block", "no tokens", "batch closed"
PREEMPTED, PREFILL, PROMPTS, DECODING = "preempted, and again", "own prefill", "others' prompts", "own decoding"
PARTS = (
    LATE,
    TRITON,
    HELD,
    IN_PROGRESS,
    NO_SLOT,
    NO_BLOCK,
    NO_TOKENS,
    CLOSED,
    "no prefix",
    PREEMPTED,
    PREFILL,
    PROMPTS,
    DECODING,
)
WORDS = {  # the largest part, in a sentence after "is" or "are"
    LATE: "the client's: it sent the request later than it should have",
    TRITON: "between the client and the model: Triton's queue and the network",
    HELD: f"the machine's: it was held up, in steps that took over {HELD_UP} times as long as others like them",
    IN_PROGRESS: "the step that was being computed when the request came",
    NO_SLOT: "waiting for a slot",
    NO_BLOCK: "waiting for memory in the KV cache",
    NO_TOKENS: "waiting for room in the token budget of a step, which other prompts fill",
    CLOSED: "waiting for the batch to end, which no request may join",
    PREEMPTED: "being preempted, and computing tokens again",
    PREFILL: "the prefill of its own prompt",
    PROMPTS: "the prefill of other requests' prompts",
    DECODING: "its own decoding",
}
PERCENTILES = (50, 95, 99)
MORE, LESS = (2, 4), (2, 4, 8)  # times as much of a setting, and parts of it, that are tried


@dataclass
class ExplainedRequest:
    """One request with an answer; times are milliseconds.

    Attributes:
        ttft: its parts, which add up to the time to the first token, since the client should have sent it.
        tpot: the parts of the mean time per output token after the first.
        blame: seconds for which each other request was in the batch while this one waited, or the prompt tokens that it
            computed beside this one, by part and name.
    """

    name: str
    prompt: int
    made: int
    tenant: str
    ttft: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tpot: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    blame: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))

    def whole(self, metric: str) -> float:
        return sum(self.parts(metric).values())

    def parts(self, metric: str) -> dict[str, float]:
        return self.ttft if metric == "TTFT" else self.tpot


@dataclass
class _Live:
    """A request on its way: until when its time is accounted for, and how many tokens it has.

    ``behind``: by how many seconds the queue was late when the request came.
    """

    explained: ExplainedRequest
    until: float
    behind: float = 0.0
    tokens: int = 0
    again: bool = False  # it was preempted, and its tokens are computed again


def explain_requests(recording: Recording, sent: Mapping[str, Sent] | None = None) -> list[ExplainedRequest]:
    """Every request of a recording that was answered, with the parts of its times, in order of arrival.

    Args:
        sent: by the request's name; without it a request's time begins when it comes to the model.
    """
    share = _Share(recording)
    sent = sent or {}
    found: list[ExplainedRequest] = []
    waiting = iter(recording.arrivals)
    following = next(waiting, None)
    live: dict[str, _Live] = {}
    late = 0.0  # seconds by which the queue is late, because the machine was held up
    for row in recording.rows:
        times = share.of(row)
        late = late if row.waiting else 0.0
        while following and following.at < row.over:
            explained = ExplainedRequest(following.name, following.prompt, following.made, following.tenant)
            live[following.name] = _Live(explained, following.at, late)
            if client := sent.get(following.name):
                start = client.start - recording.zero
                explained.ttft[TRITON] += 1e3 * (following.at - start)
                if client.due:
                    explained.ttft[LATE] += 1e3 * (client.start - client.due)
            following = next(waiting, None)
        for name, request in list(live.items()):
            _account(request, row, times)
            if name in row.ended:
                del live[name]
                if request.tokens:
                    found.append(_finished(request))
        late += times.held
    return found


def _account(request: _Live, row: StepRow, times: _Times) -> None:
    """Give the request's time until the end of this step to its parts."""
    explained = request.explained
    name = explained.name
    since = request.until
    seconds = row.over - since
    request.until = row.over
    parts = explained.tpot if request.tokens else explained.ttft
    if held := min(seconds, times.held):
        parts[HELD] += 1e3 * held
        seconds -= held
    if name in row.preempted:
        request.again = True
    if name not in row.batch:
        if request.again:
            part = PREEMPTED
        elif since <= row.began or name in row.waiting:
            part = _reason(row, name)
        else:
            part = IN_PROGRESS
        if late := min(seconds, request.behind):
            parts[HELD] += 1e3 * late
            request.behind -= late
            seconds -= late
        if part == IN_PROGRESS:
            prompts_s = seconds * times.prompts
            _blame_prompts(explained, row, prompts_s, parts)
            seconds -= prompts_s
        parts[part] += 1e3 * seconds
        for other in row.batch:
            explained.blame[part][other] += seconds
        return
    prompts_s = seconds * times.others.get(name, 0.0)
    _blame_prompts(explained, row, prompts_s, parts)
    if request.again:
        part = PREEMPTED
    else:
        part = DECODING if request.tokens else PREFILL
    parts[part] += 1e3 * (seconds - prompts_s)
    if made := row.made[row.batch.index(name)]:
        request.tokens += made
        request.again = False


def _blame_prompts(explained: ExplainedRequest, row: StepRow, seconds: float, parts: dict[str, float]) -> None:
    """Give as many seconds to the prompts of others in this step."""
    parts[PROMPTS] += 1e3 * seconds
    if seconds:
        for other, letter, tokens in zip(row.batch, row.phase, row.tokens, strict=True):
            if other != explained.name and letter == "p":
                explained.blame[PROMPTS][other] += tokens


def _reason(row: StepRow, name: str) -> str:
    """The scheduler's reason; for a request that stands behind the longest queue that a line shows, the last one's."""
    if not row.why:
        return NO_SLOT
    return row.why[row.waiting.index(name)] if name in row.waiting else row.why[-1]


def _finished(request: _Live) -> ExplainedRequest:
    explained = request.explained
    gaps = request.tokens - 1
    explained.tpot = {part: ms / gaps for part, ms in explained.tpot.items()} if gaps > 0 else {}
    return explained


class _Times(NamedTuple):
    """For one step: the seconds for which the machine was held up, and the share of prompts in the rest.

    ``others``: those of others, for each request in it; ``prompts``: all of them.
    """

    held: float
    others: Mapping[str, float]
    prompts: float = 0.0


class _Share:
    """The parts of a step's time, by the model of the recording."""

    def __init__(self, recording: Recording) -> None:
        from labsched.fitting import fit

        self._features = StepFeatures()
        self._model: StepTime | None
        try:
            self._model = fit(recording.rows)
        except LabError:  # too few steps for a model: a step is divided by its tokens
            self._model = None

    def of(self, row: StepRow) -> _Times:
        counts = self._features.of(row)
        held = self._model.excess(counts, row.over - row.began) if self._model else 0.0
        requests = zip(row.batch, row.tokens, row.phase, strict=True)
        prompts = {name: tokens for name, tokens, letter in requests if letter == "p"}
        if not prompts:
            return _Times(held, {})
        token_share = self._model.prompt_token_share(counts) if self._model else 1 / sum(row.tokens)
        total = sum(prompts.values())
        others = {name: min(1.0, token_share * (total - prompts.get(name, 0))) for name in row.batch}
        return _Times(held, others, min(1.0, token_share * total))


# -- what it comes to -------------------------------------------------------------------------------------------------


def at_percentile(found: Sequence[ExplainedRequest], metric: str, percent: float) -> ExplainedRequest:
    """The request at this rank: as many percent of the requests took at most as long (nearest rank)."""
    ordered = sorted(found, key=lambda request: request.whole(metric))
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass(frozen=True)
class Finding:
    """The largest part of a metric's p99, and what is known of it.

    Attributes:
        share: of the whole.
        culprit: the request that was most in the way; "" if none was.
        changes: settings against the part, the smallest first; [] if there is none.
    """

    metric: str
    request: ExplainedRequest
    part: str
    share: float
    culprit: str
    changes: Sequence[Mapping[str, str]]


def largest_cause(found: Sequence[ExplainedRequest], settings: SchedulerSettings, metric: str = "TTFT") -> Finding:
    """The largest part of the request at p99, without its own work if anything else is a third of the time."""
    request = at_percentile(found, metric, 99)
    parts, whole = request.parts(metric), request.whole(metric) or 1.0
    foreign = {part: ms for part, ms in parts.items() if part not in (PREFILL, DECODING)}
    largest = max(foreign, key=lambda part: foreign[part], default="")
    if not largest or foreign[largest] < whole / 3:
        largest = max(parts, key=lambda part: parts[part])
    blame = request.blame.get(largest, {})
    culprit = max(blame, key=lambda name: blame[name], default="")
    return Finding(metric, request, largest, parts[largest] / whole, culprit, remedies(largest, settings))


def remedies(part: str, settings: SchedulerSettings) -> list[dict[str, str]]:
    """Settings against a part: twice or four times the room for what is missing, less of what is in the way."""
    words = settings.words
    slots, tokens = int(words.get("max_num_sequences") or 16), settings.step_tokens
    if part == NO_SLOT:
        return [{"max_num_sequences": str(times * slots)} for times in MORE]
    if part in (NO_BLOCK, PREEMPTED):
        cache = settings.blocks * settings.block_size
        return [{"max_tokens_in_paged_kv_cache": str(times * cache)} for times in MORE]
    if part == NO_TOKENS:
        return [{"max_num_tokens": str(times * tokens)} for times in MORE]
    if part == CLOSED:
        return [{"gpt_model_type": "inflight_fused_batching"}]
    if part == PROMPTS and words.get("enable_chunked_context", "").lower() == "false":
        return [{"enable_chunked_context": "true"}]
    if part == PROMPTS:
        return [{"max_num_tokens": str(max(1, tokens // times))} for times in LESS]
    return []


def cause_table(found: Sequence[ExplainedRequest], metric: str) -> tuple[list[str], list[tuple[str, list[float]]]]:
    """The parts (ms) of the requests at each of PERCENTILES, without parts that are 0 for all; the last row is the sum.

    Returns: the names of those requests, and the rows.
    """
    chosen = [at_percentile(found, metric, percent) for percent in PERCENTILES]
    rows = []
    for part in _all_parts(chosen, metric):
        rows.append((part, [request.parts(metric).get(part, 0.0) for request in chosen]))
    rows.append((metric, [request.whole(metric) for request in chosen]))
    return [request.name for request in chosen], rows


def _all_parts(chosen: Sequence[ExplainedRequest], metric: str) -> list[str]:
    """The parts that any of these requests has: in the order of PARTS, then reasons that are not known here."""
    parts = {part for request in chosen for part, ms in request.parts(metric).items() if ms > 0}
    return [*(part for part in PARTS if part in parts), *sorted(parts - {*PARTS})]
