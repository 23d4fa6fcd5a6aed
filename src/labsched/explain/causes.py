"""The parts of each request's time: what its TTFT and its TPOT consist of.

Every moment between a request's sending and its last token belongs to one part, so that the parts add up to the whole.
A request that got no token has the parts of its time until it left, or until the recording ended. Where the log does
not say what a request waited for, the part is NOT_RECORDED: no part is taken for granted.

A step in which the request waits belongs to the scheduler's reason. A step that computes the request is divided: the
cost of other requests' prompts, by the step-time model, is one part, and the rest is the request's own. The moment
between two steps counts with the later one. Where no step is computed for longer, the log does not say why.

If the machine was held up, the time that a step took beyond the model is a part of its own, for running and for
waiting requests. Later requests count it too: a queue at that time is late by as much until it is empty, or until each
request that had come by then has joined the batch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from labsched.errors import LabError
from labsched.replay.recording import Arrival, Recording, Sent
from labsched.replay.steptime import HELD_UP, PAUSE_S, StepFeatures, StepTime
from labsched.step import NOT_RECORDED, Step
from labsched.vllm.decision import NOT_READY

LATE, WAY, DELIVERY = "client late", "client to server", "back to the client"
FRONT_END, TRITON = "in vLLM's front end", "waiting in Triton"
HELD, IN_PROGRESS = "machine held up", "the step in progress"
NO_SLOT, NO_BLOCK, NO_TOKENS, CLOSED = "no slot", "no KV block", "no tokens", "batch closed"
NO_PREFIX = "no prefix"
PREEMPTED, PREFILL, PROMPTS, DECODING = "preempted, and again", "own prefill", "others' prompts", "own decoding"
OWN_WORK = (PREFILL, DECODING)  # the request's own work
NOBODYS = (NOT_READY, NOT_RECORDED)  # no other request makes it wait, as far as is known
PARTS = {  # in the order of the tables: what each is, in a sentence after "is"
    LATE: "the client's: it sent the request later than it should have",
    WAY: "on the way from the client to the server",
    TRITON: "between the client and the model: Triton's queue and the network",
    FRONT_END: "in vLLM's front end, before the scheduler had the request",
    HELD: f"the machine's: it was held up, in steps that took over {HELD_UP} times as long as others like them",
    IN_PROGRESS: "the step that was being computed when the request came",
    NO_SLOT: "waiting for a slot",
    NO_BLOCK: "waiting for memory in the KV cache",
    NO_TOKENS: "waiting for room in the token budget of a step",
    CLOSED: "waiting for the batch to end, which no request may join",
    NO_PREFIX: "waiting for a prefix that another request was computing",
    NOT_READY: "waiting for its grammar, for keys and values from elsewhere, or for its client's next input",
    NOT_RECORDED: "not recorded: the log does not say what the request waited for",
    PREEMPTED: "being preempted, and computing tokens again",
    PREFILL: "the prefill of its own prompt",
    PROMPTS: "the prefill of other requests' prompts",
    DECODING: "its own decoding",
    DELIVERY: "on the way back: the server's front end, the network and the client",
}


@dataclass
class ExplainedRequest:
    """One request and the parts of its times; times are milliseconds.

    Attributes:
        engine: which of the server's engines had it; None: not recorded.
        began: seconds since the recording's beginning at which its time begins.
        tokens: of its answer, as far as the steps show it.
        ttft: its parts, which add up to the time to the first token, since the client should have sent it; of a request
            without a token, to the time until it left.
        tpot: the parts of the mean time per output token after the first.
        blame: the milliseconds of a part that each other request answers for: it held what this one waited for, or its
            prompt was computed beside this one.
        joined: when it joined the batch first, and ``answered_at``, when its first token was there, in the seconds of
            ``began``; None: it did not.
    """

    arrival: Arrival
    engine: str | None
    began: float
    tokens: int = 0
    ttft: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tpot: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    blame: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    cached: int = 0
    joined: float | None = None
    answered_at: float | None = None

    @property
    def name(self) -> str:
        return self.arrival.name

    @property
    def answered(self) -> bool:
        return self.tokens > 0

    def whole(self, metric: str) -> float:
        return sum(self.parts(metric).values())

    def parts(self, metric: str) -> dict[str, float]:
        return self.ttft if metric == "TTFT" else self.tpot


@dataclass
class _Live:
    """A request on its way: until when its time is accounted for.

    ``behind``: by how many seconds the queue was late when the scheduler had it; None: it has it not yet. ``gap``: the
    parts of the time since its last token, which count when the next one is there.
    """

    explained: ExplainedRequest
    until: float
    behind: float | None = None
    again: bool = False  # it was preempted, and its tokens are computed again
    gap: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, part: str, seconds: float) -> None:
        parts = self.gap if self.explained.tokens else self.explained.ttft
        parts[part] += 1e3 * seconds

    def blame(self, part: str, seconds: float, weights: Mapping[str, int], whole: int) -> None:
        """Others answer for these seconds of a part by their weights, which come to ``whole`` without its own."""
        blamed, each, own = self.explained.blame[part], 1e3 * seconds / whole, self.explained.name
        for other, weight in weights.items():
            if other != own:
                blamed[other] += each * weight


def explain_requests(recording: Recording, sent: Mapping[str, Sent] | None = None) -> list[ExplainedRequest]:
    """Every request of a recording, answered or not, with the parts of its times, in order of arrival.

    Args:
        sent: by the request's name; without it a request's time begins when it comes to the server.
    """
    walk = _Walk(recording, sent or {})
    for step, following in itertools.zip_longest(recording.steps, recording.steps[1:]):
        walk.take(step, following)
    return walk.ended()


def explain_server(
    recordings: Sequence[Recording], sent: Callable[[Recording], Mapping[str, Sent]]
) -> list[ExplainedRequest]:
    """The requests of all engines of a server, as :func:`explain_requests` has them, in order of arrival.

    ``began`` counts from the beginning of the earliest recording.

    Args:
        sent: gives what is known of the clients of a recording's requests.
    """
    found = []
    starts = [recording.zero if recording.wall is None else recording.wall for recording in recordings]
    for recording, start in zip(recordings, starts, strict=True):
        for request in explain_requests(recording, sent(recording)):
            request.began += start - min(starts)
            found.append(request)
    return sorted(found, key=lambda request: request.began)


class _Walk:
    """The steps of a recording, one after the other, and the requests that are on their way."""

    def __init__(self, recording: Recording, sent: Mapping[str, Sent]) -> None:
        every = sorted([*recording.arrivals, *recording.pending], key=lambda arrival: arrival.at)
        self._recording, self._sent = recording, sent
        self._front = FRONT_END if recording.settings.vllm else TRITON
        self._share = _Share(recording.steps)
        self._coming = deque(every)
        self._order = {arrival.name: place for place, arrival in enumerate(every)}
        self._live: dict[str, _Live] = {}
        self._found: list[ExplainedRequest] = []
        # For how long the machine was held up, and how many requests had come by then, where some of them still wait:
        self._held: list[tuple[float, int]] = []
        self._late = 0.0  # seconds by which the queue is late, for that reason
        self._over = 0.0  # when the last step was over
        self._stood_still = False  # requests were there, and no step was computed before this one

    def take(self, step: Step, following: Step | None) -> None:
        """Account for the time until this step is over. ``following``: the next step; None: there is none."""
        computed = self._share.of(step, following)
        if self._held:
            self._held = self._not_caught_up(computed)
        self._late = sum(seconds for seconds, _ in self._held)
        self._stood_still = step.busy and step.began - self._over > self._share.longest_gap
        self._over = step.over
        while self._coming and self._coming[0].at < step.over:
            self._begin(self._coming.popleft())
        for name, request in list(self._live.items()):
            arrival = request.explained.arrival
            if arrival.cancelled and arrival.left_at <= step.began and name not in computed.place:
                self._end(name)
                continue
            self._to_parts(request, computed)
            if name in step.ended:
                self._end(name)
        if computed.held:
            self._held.append((computed.held, len(self._order) - len(self._coming)))

    def _not_caught_up(self, computed: _Computed) -> list[tuple[float, int]]:
        """The times for which it was held up, without those by whose end no request had come that still waits."""
        if not computed.step.waiting:
            return []
        joined = computed.place
        waiting = (n for n, live in self._live.items() if live.explained.joined is None and n not in joined)
        first = min((self._order[name] for name in waiting), default=len(self._order))
        return [(seconds, came) for seconds, came in self._held if first < came]

    def ended(self) -> list[ExplainedRequest]:
        """All requests, when no step is left."""
        while self._coming:
            self._begin(self._coming.popleft())
        for name in [*self._live]:
            self._end(name)
        return sorted(self._found, key=lambda request: self._order[request.name])

    def _begin(self, arrival: Arrival) -> None:
        explained = ExplainedRequest(arrival, self._recording.engine, arrival.at)
        self._live[arrival.name] = _Live(explained, arrival.at)
        if client := self._sent.get(arrival.name):
            start = client.start - self._recording.zero
            # Where the front end's time is not recorded, it is not known what of this was the way.
            way = WAY if arrival.waited is not None else NOT_RECORDED
            explained.ttft[way if self._front == FRONT_END else TRITON] += 1e3 * (arrival.at - start)
            explained.began = start
            if client.due is not None:
                explained.ttft[LATE] += 1e3 * (client.start - client.due)
                explained.began -= client.start - client.due

    def _end(self, name: str) -> None:
        """The request has ended, or the recording."""
        request = self._live.pop(name)
        explained, arrival = request.explained, request.explained.arrival
        if not explained.tokens:  # no step says what was in the rest of its time
            left = arrival.left_at if arrival.cancelled else self._over
            received = max(request.until, min(arrival.received, left))
            request.add(self._front, received - request.until)
            request.add(NOT_RECORDED, max(0.0, left - received))
        gaps = explained.tokens - 1
        explained.tpot = {part: ms / gaps for part, ms in explained.tpot.items()} if gaps > 0 else {}
        self._found.append(explained)

    def _to_parts(self, request: _Live, computed: _Computed) -> None:
        """Give the request's time until the end of this step to its parts."""
        explained, arrival, step = request.explained, request.explained.arrival, computed.step
        place = computed.place.get(explained.name)
        made = 0 if place is None else step.made[place]
        end = step.over if made or not arrival.cancelled else max(request.until, min(step.over, arrival.left_at))
        since, request.until = request.until, end
        if since < arrival.received:
            before = min(end, arrival.received)
            in_progress = (
                max(0.0, before - max(since, step.began)) if computed.was_last_before(arrival.received) else 0.0
            )
            stood = max(0.0, min(before, step.began) - since) if self._stood_still else 0.0
            if stood:
                request.add(NOT_RECORDED, stood)
            request.add(self._front, before - since - in_progress - stood)
            self._divide(request, computed, IN_PROGRESS, in_progress)
            since = before
        if end > since or made:
            if request.behind is None:
                request.behind = self._late
            if (stood := min(end, step.began) - since) > self._share.longest_gap:
                request.add(NOT_RECORDED, stood)
                since += stood
            self._divide(request, computed, self._part(request, computed, place), end - since, joined=place is not None)
        if place is not None and explained.joined is None:
            explained.joined, explained.cached = step.began, step.found[place]
        if made:
            self._made(request, made, step.over)

    def _made(self, request: _Live, made: int, over: float) -> None:
        """The request has as many new tokens."""
        explained = request.explained
        if not explained.tokens:
            explained.answered_at = over
            client = self._sent.get(explained.name)
            if client and client.first is not None:
                explained.ttft[DELIVERY] += 1e3 * (client.first - self._recording.zero - over)
        for part, ms in request.gap.items():
            explained.tpot[part] += ms
        request.gap.clear()
        explained.tokens += made
        request.again = False

    def _part(self, request: _Live, computed: _Computed, place: int | None) -> str:
        """What the request does in this step, or waits for, once the scheduler has it."""
        explained, step = request.explained, computed.step
        name = explained.name
        request.again = request.again or name in step.evicted
        if request.again:
            return PREEMPTED
        if place is not None:
            return DECODING if explained.tokens else PREFILL
        if name in computed.why:
            return computed.why[name]
        if explained.joined is not None:  # it runs, and has no token in this step
            return NO_TOKENS if sum(step.tokens) >= self._recording.settings.step_tokens else NOT_RECORDED
        if explained.arrival.received > step.began - (step.ahead_us or 0) / 1e6:
            return IN_PROGRESS
        return NOT_RECORDED if step.behind is None else step.behind

    def _divide(self, request: _Live, computed: _Computed, part: str, seconds: float, joined: bool = False) -> None:
        """Give seconds of a step to a part, without what the machine's delay and others' prompts take of them."""
        name = request.explained.name
        held = min(seconds, computed.held)
        if not joined and request.behind:
            late = min(seconds - held, request.behind)
            request.behind -= late
            held += late
        if held:
            request.add(HELD, held)
            seconds -= held
        if joined or part == IN_PROGRESS:
            tokens = computed.prompt_tokens - computed.prompts.get(name, 0)
            others = seconds * min(1.0, computed.token_share * tokens)
            if others and not self._share.is_known:
                request.add(NOT_RECORDED, others)
            elif others:
                request.add(PROMPTS, others)
                request.blame(PROMPTS, others, computed.prompts, tokens)
            seconds -= others
        elif part in (NO_TOKENS, NO_PREFIX) and computed.prompts:
            request.blame(part, seconds, computed.prompts, computed.prompt_tokens - computed.prompts.get(name, 0) or 1)
        elif part in (NO_BLOCK, PREEMPTED):
            held_by_others = sum(computed.cached.values()) - computed.cached.get(name, 0)
            request.blame(part, seconds, computed.cached, held_by_others or 1)
        elif part not in NOBODYS and computed.ones:
            request.blame(part, seconds, computed.ones, len(computed.ones))
        request.add(part, seconds)


@dataclass(frozen=True, slots=True)
class _Computed:
    """One step, with what all requests need to know of it.

    Attributes:
        following: the step after it; None: there is none.
        held: the seconds for which the machine was held up in it.
        token_share: of each prompt token in the rest of its time.
        prompts: the prompt tokens of each request that it computed some of, and ``prompt_tokens``: their sum.
        place: of each request in the batch; ``ones``: 1 for each.
        cached: the tokens of each in the KV cache, which hold its memory.
        why: each request waits that the log names.
    """

    step: Step
    following: Step | None
    held: float
    token_share: float
    prompts: Mapping[str, int]
    prompt_tokens: int
    place: Mapping[str, int]
    ones: Mapping[str, int]
    cached: Mapping[str, int]
    why: Mapping[str, str]

    def was_last_before(self, moment: float) -> bool:
        """Whether it is the last step that was over by then: a request that came during it had to wait for its end."""
        return self.step.over <= moment and (self.following is None or moment < self.following.over)


class _Share:
    """The parts of a step's time, by the model of the recording.

    ``longest_gap``: seconds between two steps that count with the later one.
    ``is_known``: whether there are steps enough for a model; else they are divided by tokens, which proves nothing.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        from labsched.replay.fitting import fit

        self._features = StepFeatures()
        self._model: StepTime | None
        try:
            self._model = fit(steps)
        except LabError:
            self._model = None
        self.is_known = self._model is not None
        self.longest_gap = self._model.longest_gap if self._model else HELD_UP * PAUSE_S

    def of(self, step: Step, following: Step | None) -> _Computed:
        counts = self._features.of(step)
        requests = zip(step.ids, step.tokens, step.phase, strict=True)
        prompts = {name: tokens for name, tokens, letter in requests if letter == "p" and tokens}
        return _Computed(
            step=step,
            following=following,
            held=self._model.excess(counts, step.over - step.began) if self._model else 0.0,
            token_share=self._model.prompt_token_share(counts) if self._model else 1 / max(1, sum(step.tokens)),
            prompts=prompts,
            prompt_tokens=sum(prompts.values()),
            place={name: place for place, name in enumerate(step.ids)},
            ones=dict.fromkeys(step.ids, 1),
            cached=dict(zip(step.ids, self._features.contexts, strict=True)),
            why=dict(zip(step.waiting, step.whys, strict=True)),
        )
