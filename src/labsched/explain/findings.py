"""What the parts of all requests come to: whose time is long, which part of it is largest, and who is in the way.

The tail of a group are its slowest requests, from the one at p99 on. A group is all requests, or a class of them: by
tenant, priority, engine or length of the prompt. p99 of a mixture is its slowest class alone, so each class has a tail.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from labsched.explain.causes import (
    CLOSED,
    HELD,
    NO_BLOCK,
    NO_SLOT,
    NO_TOKENS,
    OWN_WORK,
    PARTS,
    PREEMPTED,
    PROMPTS,
    ExplainedRequest,
)
from labsched.explain.prefixes import hashed_blocks, prefix_use
from labsched.log.settings import SchedulerSettings
from labsched.replay.recording import Arrival, Recording
from labsched.replay.vllm_arguments import DTYPE, FP8, SHARE, TWO_BYTES

TOKEN_TIMES = ("TTFT", "TPOT")
RANKS = (50, 95, 99)
SHORT_OF_MEMORY = (NO_BLOCK, PREEMPTED)
ENLARGED, REDUCED = (2, 4), (2, 4, 8)  # times as much of a setting, and parts of it, that are tried
THRESHOLD, WATERMARK = "long_prefill_token_threshold", "watermark"
SMALLER = {"max_num_sequences": "max_num_active_seqs", "max_num_tokens": "max_num_scheduled_tokens"}  # vLLM's, if set
CHUNK = 2048  # tokens of a step, where prompts went in one piece before
CACHE_MATTERS = 0.1  # of the prompt tokens
MOST_SHARE = 0.95  # of a device's memory
SECOND = 0.5  # of the largest part, from which on a second one is named
MATTERS = 1 / 3  # of the time, from which on another part comes before the request's own work
CULPRIT, STANDS_OUT = (
    0.1,
    2,
)  # of what others answer for, or times the mean: with less, one of many alike would be named
APART, FEW_TOKENS = 4, 16  # times as long are long prompts; fewer tokens are no difference
DIFFER = 2  # times the p99 of another class
LENGTH, ENGINE = "prompt length", "engine"  # in which classes differ
AS_LONG = 0.5  # of the p99 of all requests: that of a class is as bad
MOST_CLASSES, MOST_VICTIMS = 8, 2  # with more, a sentence helps nobody
RequestKey = tuple[str | None, str]  # a request of a server: its engine and its name


@dataclass(frozen=True)
class RequestGroup:
    """Requests that have something in common: ``words`` say what, after "the requests"; "" for all of them."""

    kind: str
    title: str
    words: str
    requests: Sequence[ExplainedRequest]

    def __len__(self) -> int:
        return len(self.requests)

    def of(self, metric: str) -> Sequence[ExplainedRequest]:
        """Its requests that have this metric: TTFT needs a token, TPOT two."""
        least = TOKEN_TIMES.index(metric) + 1
        return [request for request in self.requests if request.tokens >= least]


def everybody(requests: Sequence[ExplainedRequest]) -> RequestGroup:
    return RequestGroup("", "all", "", requests)


def at_percentile(found: Sequence[ExplainedRequest], metric: str, percent: float) -> ExplainedRequest:
    """The request at this rank: as many percent of the requests took at most as long (nearest rank)."""
    return _slowest_last(found, metric)[rank(len(found), percent)]


def _slowest_last(found: Sequence[ExplainedRequest], metric: str) -> list[ExplainedRequest]:
    return sorted(found, key=lambda request: request.whole(metric))


def rank(count: int, percent: float) -> int:
    """The place of a percentile among so many sorted values (nearest rank)."""
    return max(0, math.ceil(percent / 100 * count) - 1)


# -- classes ----------------------------------------------------------------------------------------------------------


def classes(requests: Sequence[ExplainedRequest]) -> list[list[RequestGroup]]:
    """The classes of requests, once for each thing in which they differ; the same division stands there once."""
    kinds: list[list[RequestGroup]] = []
    for kind, classed in (
        ("tenant", _by("tenant", "of tenant", requests, lambda request: request.arrival.tenant)),
        ("priority", _by("priority", "of priority", requests, lambda request: request.arrival.priority)),
        (ENGINE, _by(ENGINE, "of engine", requests, lambda request: request.engine)),
        (LENGTH, _by_length(requests)),
    ):
        same = {frozenset(map(id, group.requests)) for group in classed}
        few = kind == ENGINE or len(classed) <= MOST_CLASSES  # one engine of many is a server of its own
        if (
            len(classed) > 1
            and few
            and not any(same == {frozenset(map(id, group.requests)) for group in other} for other in kinds)
        ):
            assert all(group.kind == kind for group in classed)
            kinds.append(classed)
    return kinds


def _by(
    kind: str, words: str, requests: Sequence[ExplainedRequest], value: Callable[[ExplainedRequest], str | int | None]
) -> list[RequestGroup]:
    """A class for each value, None left out."""
    same: dict[str | int, list[ExplainedRequest]] = defaultdict(list)
    for request in requests:
        if (found := value(request)) is not None:
            same[found].append(request)
    return [
        RequestGroup(kind, f"{found}", f"{words} {found}", same[found])
        for found in sorted(same, key=lambda found: f"{found:>12}")
    ]


def _by_length(requests: Sequence[ExplainedRequest]) -> list[RequestGroup]:
    """Short and long prompts: on both sides of the widest gap, else what is many times as long as most."""
    lengths = sorted(request.arrival.prompt for request in requests)
    if not lengths:
        return []
    gaps = [(_times(after, before), before) for before, after in itertools.pairwise(lengths)]
    widest, most = max(gaps, default=(1.0, 0))
    if widest < APART:
        middle = median(lengths)
        most = max((length for length in lengths if _times(length, middle) < APART), default=0)
    short = [request for request in requests if request.arrival.prompt <= most]
    long = [request for request in requests if request.arrival.prompt > most]
    return [_of_length(some) for some in (short, long) if some]


def _times(longer: float, shorter: float) -> float:
    return (longer + FEW_TOKENS) / (shorter + FEW_TOKENS)


def _of_length(requests: Sequence[ExplainedRequest]) -> RequestGroup:
    shortest, longest = (extreme(request.arrival.prompt for request in requests) for extreme in (min, max))
    title = f"{longest:,} tokens" if shortest == longest else f"{shortest:,} to {longest:,} tokens"
    return RequestGroup(LENGTH, title, f"with prompts of {title}", requests)


# -- findings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """The tail of a group in one metric.

    Attributes:
        tail: its slowest requests.
        alone: of a finding about all requests, the class whose requests are the whole tail; None: there is none.
        p50, p99: ms, of the whole group.
        shares: of the parts in the tail's time, the largest first.
        part: the largest one; the requests' own work only if nothing else is a third of the time.
        second: the next one that is not the requests' own work, if it matters; else None.
        behind: the class that answers for most of this part, if it answers for half of it; else None.
        culprit: the request that answers for most of it, if it stands out; else None.
        changes: settings against the part, or against the second one if the machine was held up, the smallest change
            first; [] if there is none.
    """

    metric: str
    group: RequestGroup
    request: ExplainedRequest
    tail: Sequence[ExplainedRequest]
    p50: float
    p99: float
    shares: Mapping[str, float]
    part: str
    second: str | None
    behind: RequestGroup | None
    culprit: ExplainedRequest | None
    changes: Sequence[Mapping[str, str]]
    alone: RequestGroup | None = None

    @property
    def share(self) -> float:
        return self.shares[self.part]

    @property
    def is_victim(self) -> bool:
        """Whether another class is what this one waits for."""
        foreign = 1.0 - sum(self.shares.get(part, 0.0) for part in OWN_WORK)
        return self.behind is not None and self.behind.title != self.group.title and foreign >= 0.5


def find(
    group: RequestGroup,
    metric: str,
    settings: SchedulerSettings,
    every: Sequence[ExplainedRequest],
    rivals: Sequence[RequestGroup],
) -> Finding:
    """The finding about a group, which has requests with this metric.

    Args:
        every: all requests of the server: they may be in the way.
        rivals: the classes that may be in the way.
    """
    slowest = _slowest_last(group.of(metric), metric)
    at = at_percentile(slowest, metric, 99)
    tail = slowest[rank(len(slowest), 99) :]
    sums: dict[str, float] = defaultdict(float)
    for request in tail:
        for part, ms in request.parts(metric).items():
            sums[part] += ms
    whole = sum(sums.values())
    shares = {part: sums[part] / whole if whole else 0.0 for part in sorted(sums, key=lambda part: -sums[part])}
    part = next((part for part in shares if part not in OWN_WORK and shares[part] >= MATTERS), next(iter(shares)))
    matters = (other for other in shares if other not in (part, *OWN_WORK) and shares[other] >= SECOND * shares[part])
    second = next(matters, None)
    blamed: dict[RequestKey, float] = defaultdict(float)
    for request in tail:
        for name, ms in request.blame.get(part, {}).items():
            blamed[request.engine, name] += ms
    by_key = {(request.engine, request.name): request for request in every}
    whole_blame = sum(blamed.values())
    worst = max(blamed, key=lambda key: blamed[key], default=None)
    enough = min(CULPRIT, STANDS_OUT / max(1, len(blamed))) * whole_blame
    culprit = by_key.get(worst) if worst and blamed[worst] >= enough else None
    answers = [(sum(blamed.get((r.engine, r.name), 0.0) for r in rival.requests), rival) for rival in rivals]
    most, behind = max(answers, key=lambda answer: answer[0], default=(0.0, None))
    behind = behind if most > whole_blame / 2 else None
    return Finding(
        metric=metric,
        group=group,
        request=at,
        tail=tail,
        p50=at_percentile(slowest, metric, 50).whole(metric),
        p99=at.whole(metric),
        shares=shares,
        part=part,
        second=second,
        behind=behind,
        culprit=culprit,
        changes=remedies(
            second if part == HELD and second else part,
            settings,
            metric,
            behind,
            max(request.arrival.prompt for request in every),
        ),
    )


def findings(
    requests: Sequence[ExplainedRequest],
    settings: SchedulerSettings,
    metric: str,
    every: Sequence[ExplainedRequest] | None = None,
) -> list[Finding]:
    """The finding about all requests, and those about classes that wait for another class; the weightiest first.

    A class that waits comes before a p99 which is its requests' own work, where nothing is in the way, and before one
    that is hardly longer than its own. [] if no request has this metric.

    Args:
        every: the server's requests, where ``requests`` are some of them: others may be in their way.
    """
    those = everybody(requests)
    if not those.of(metric):
        return []
    involved, divisions = _divisions(requests, every)
    kinds = [groups for groups, _ in divisions]
    whole = find(those, metric, settings, involved, [])
    whole = replace(whole, alone=_alone(whole, kinds))
    victims = []
    for groups, rivals in divisions:
        of_kind = [find(group, metric, settings, involved, rivals) for group in groups if group.of(metric)]
        victims += [found for found in of_kind if found.is_victim]
    victims.sort(key=lambda found: -found.share * found.p99)
    del victims[MOST_VICTIMS:]
    if any(found.group is whole.alone for found in victims):
        return victims  # the p99 of all is theirs
    waits = victims and AS_LONG * whole.p99 <= victims[0].p99
    return [*victims, whole] if waits or whole.part in OWN_WORK else [whole, *victims]


def _divisions(
    requests: Sequence[ExplainedRequest], every: Sequence[ExplainedRequest] | None
) -> tuple[Sequence[ExplainedRequest], list[tuple[list[RequestGroup], list[RequestGroup]]]]:
    """The requests and those in their way, and for each thing in which they differ the classes of both.

    The first classes of each pair are of ``requests`` alone, the second also have what is in the way.
    """
    chosen = set(map(id, requests))
    involved = requests
    if every is not None and len(every) > len(requests):
        blamed = {(one.engine, name) for one in requests for others in one.blame.values() for name in others}
        involved = [one for one in every if id(one) in chosen or (one.engine, one.name) in blamed]
    divisions = []
    for kind in classes(involved):
        own = [replace(group, requests=[one for one in group.requests if id(one) in chosen]) for group in kind]
        divisions.append((own, kind))
    return involved, divisions


def _alone(whole: Finding, kinds: Sequence[Sequence[RequestGroup]]) -> RequestGroup | None:
    """The class that a p99 of all requests is about: it is hardly more than the tail, or the others are much faster."""
    tail = {id(request) for request in whole.tail}
    for group in itertools.chain.from_iterable(kinds):
        rest = set(map(id, group.requests))
        others = [request for request in whole.group.of(whole.metric) if id(request) not in rest]
        if not tail <= rest or not others:
            continue
        faster = DIFFER * at_percentile(others, whole.metric, 99).whole(whole.metric) <= whole.p99
        if faster or len(rest) <= DIFFER * len(tail):
            return group
    return None


def differing(
    requests: Sequence[ExplainedRequest],
    settings: SchedulerSettings,
    metric: str,
    every: Sequence[ExplainedRequest] | None = None,
) -> list[list[Finding]]:
    """The classes whose tails differ, once for each thing in which they do: by p99, or by the largest part.

    Arguments as of :func:`findings`.
    """
    tables = []
    involved, divisions = _divisions(requests, every)
    for groups, rivals in divisions:
        of_kind = [find(group, metric, settings, involved, rivals) for group in groups if group.of(metric)]
        times = [found.p99 for found in of_kind]
        if len(of_kind) > 1 and (max(times) >= DIFFER * min(times) or len({found.part for found in of_kind}) > 1):
            tables.append(of_kind)
    return tables


def remedies(
    part: str, settings: SchedulerSettings, metric: str, behind: RequestGroup | None, longest: int
) -> list[dict[str, str]]:
    """Settings against a part: twice or four times the room for what is missing, less of what is in the way.

    Args:
        behind: the class that answers for it; None: no class does.
        longest: tokens of the longest prompt.
    """
    words, tokens = settings.words, settings.step_tokens
    if part == NO_SLOT:
        return _enlarged(settings, "max_num_sequences", int(words["max_num_sequences"] or 16))
    if part in SHORT_OF_MEMORY and not settings.vllm:  # the memory of a person's own device is what it is
        cache = settings.blocks * settings.block_size
        return [{"max_tokens_in_paged_kv_cache": str(times * cache)} for times in ENLARGED]
    long_first = part == NO_TOKENS and behind is not None and behind.kind == LENGTH
    if settings.vllm and metric == "TTFT" and (part == PROMPTS or long_first):
        # A smaller step would only make others' prompts take longer, and a larger one would hold more of them. Nor does
        # a threshold help that no prompt reaches.
        thresholds = [max(1, tokens // times) for times in REDUCED[1:]]
        return [{THRESHOLD: str(most)} for most in thresholds if most < longest]
    if part == NO_TOKENS:
        return _enlarged(settings, "max_num_tokens", tokens)
    if part == CLOSED:
        return [{"gpt_model_type": "inflight_fused_batching"}]
    if part == PROMPTS and words["enable_chunked_context"].lower() == "false":
        return [{"enable_chunked_context": "true"}]
    if part == PROMPTS:
        return [{"max_num_tokens": str(max(1, tokens // times))} for times in REDUCED]
    return []


def _enlarged(settings: SchedulerSettings, name: str, most: int) -> list[dict[str, str]]:
    """Larger values of a limit, or of the smaller one of vLLM's that is in force in its place."""
    word = settings.words.get(SMALLER[name], "")
    if not word.isdecimal() or int(word) >= most:
        return [{name: str(times * most)} for times in ENLARGED]
    larger = {min(times * int(word), most) for times in ENLARGED}
    return [{SMALLER[name]: str(value)} for value in sorted(larger)]


def candidates(settings: SchedulerSettings, requests: Sequence[ExplainedRequest]) -> list[dict[str, str]]:
    """The settings that an operator of vLLM can take, one at a time and both ways: each is a change to try.

    Memory is among them where requests wait for it, or where what they have in common is evicted: a byte for a number
    of the KV cache in the place of two, and a larger share of the device. Settings have the labs' names, or vLLM's own.
    """
    words, tokens = settings.words, settings.step_tokens
    slots, longest = int(words["max_num_sequences"] or 16), max(request.arrival.prompt for request in requests)
    larger = _enlarged(settings, "max_num_sequences", slots)
    smaller = [{"max_num_sequences": str(slots // times)} for times in ENLARGED if slots // times]
    changes = [change for change in (*larger, *smaller) if int(next(iter(change.values()))) <= tokens]
    if words["enable_chunked_context"].lower() == "false":
        changes.append({"enable_chunked_context": "true", "max_num_tokens": str(max(CHUNK, slots))})
    else:
        changes += _enlarged(settings, "max_num_tokens", tokens)
        changes += [{"max_num_tokens": str(tokens // times)} for times in ENLARGED if tokens // times >= slots]
        threshold = words.get(THRESHOLD, "0")
        thresholds = [*(max(1, tokens // times) for times in REDUCED[1:]), *([0] if threshold != "0" else [])]
        changes += [{THRESHOLD: str(most)} for most in thresholds if most < longest and str(most) != threshold]
    if not settings.reuse and any(request.arrival.prefixes for request in requests):
        changes.append({"enable_kv_cache_reuse": "true"})
    if words["scheduling"] != "priority" and len({request.arrival.priority for request in requests}) > 1:
        changes.append({"scheduling": "priority"})
    short = any(request.ttft.get(part) or request.tpot.get(part) for request in requests for part in SHORT_OF_MEMORY)
    use = prefix_use(requests, settings)
    if short or (use and use.evicted >= CACHE_MATTERS * use.tokens):
        if WATERMARK in words:
            changes += [{WATERMARK: value} for value in ("0.0", "0.05") if float(words[WATERMARK]) != float(value)]
        if settings.recorded.get(DTYPE) in TWO_BYTES:
            changes.append({DTYPE: FP8})
        if "block_bytes" in settings.recorded and float(settings.recorded.get(SHARE, 1)) < MOST_SHARE:
            changes.append({SHARE: str(MOST_SHARE)})
    return changes


def shortage(recording: Recording) -> int:
    """The KV blocks that the requests which waited for memory lacked, in the step in which they lacked most.

    A block that several of them need, or that a running request has, is needed once.
    """
    size, most = recording.settings.block_size, 0
    every = (*recording.arrivals, *recording.pending)
    tokens = {arrival.name: arrival.prompt for arrival in every}
    shared = _SharedBlocks(every, size) if recording.settings.reuse else None
    for step in recording.steps:
        waiting = [name for name, why in zip(step.waiting, step.whys, strict=True) if why == NO_BLOCK]
        if waiting and step.kv_blocks_used is not None:
            free = recording.settings.blocks - step.kv_blocks_used
            needed = sum(-(-tokens.get(name, 0) // size) for name in waiting)
            if shared and needed - free > most:
                needed -= shared.among(tuple(waiting), step.ids)
            most = max(most, needed - free)
        for name, made in zip(step.ids, step.made, strict=True):
            if name in tokens:
                tokens[name] += made
    return most


class _SharedBlocks:
    """Which full blocks of prompts are the same, by their hashes."""

    def __init__(self, every: Sequence[Arrival], size: int) -> None:
        self._arrivals, self._size = {arrival.name: arrival for arrival in every}, size
        self._blocks: dict[str, set[bytes]] = {}
        self._last: tuple[tuple[str, ...], int] = (), 0

    def among(self, waiting: tuple[str, ...], running: Sequence[str]) -> int:
        """How many blocks of waiting requests are another waiting request's too, or a running one's.

        While the same requests wait it is counted once.
        """
        if self._last[0] != waiting:
            known, count = set[bytes]().union(*map(self._of, running)), 0
            for name in waiting:
                own = self._of(name)
                count += len(own & known)
                known |= own
            self._last = waiting, count
        return self._last[1]

    def _of(self, name: str) -> set[bytes]:
        if name not in self._blocks:
            arrival = self._arrivals.get(name)
            found = hashed_blocks(arrival.prefixes, self._size)[: arrival.prompt // self._size] if arrival else ()
            self._blocks[name] = {*found}
        return self._blocks[name]


def cause_table(
    found: Sequence[ExplainedRequest], metric: str
) -> tuple[list[ExplainedRequest], list[tuple[str, list[float]]]]:
    """The parts (ms) of the requests at each of RANKS, without parts that are 0 for all; the last row is the sum.

    Returns: those requests, and the rows.
    """
    chosen = [at_percentile(found, metric, percent) for percent in RANKS]
    rows = []
    for part in _all_parts(chosen, metric):
        rows.append((part, [request.parts(metric).get(part, 0.0) for request in chosen]))
    rows.append((metric, [request.whole(metric) for request in chosen]))
    return chosen, rows


def _all_parts(chosen: Sequence[ExplainedRequest], metric: str) -> list[str]:
    """The parts that any of these requests has: in the order of PARTS, then reasons that are not known here."""
    parts = {part for request in chosen for part, ms in request.parts(metric).items() if ms > 0}
    return [*(part for part in PARTS if part in parts), *sorted(parts - {*PARTS})]
