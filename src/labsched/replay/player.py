"""The recorded requests under other settings: the same scheduler class, in virtual time, over an engine that counts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labsched.counting import CountingEngine, KnownAnswer
from labsched.errors import LabError
from labsched.features import NONE, Features
from labsched.kv_budget import KVBudget
from labsched.log.settings import HASH_BYTES, SchedulerSettings
from labsched.order import order
from labsched.policy import BATCHING, GATHER_S, effective_policy, gather_s
from labsched.replay.recording import Arrival, Recording
from labsched.request import End, Request
from labsched.scheduler import Scheduler
from labsched.step import Step

STANDSTILL = 1000  # steps without a batch, after which no request will ever join
ALIKE, FEW_ALIKE, MANY_ALIKE = 0.02, 3, 0.25  # relative difference of times; how many are many, and which share of all
WHERE = "labctl predict --help lists what can be set"
StepSeconds = Callable[[Step], float]
PACE = ("pace", "pace_shape", "pace_table", "pace_slower")  # allowed for any recording: they do not change decisions
TRUTHS, FLAGS = ("true", "false"), ("enable_chunked_context", "enable_kv_cache_reuse", "async_scheduling")


def changed_words(settings: SchedulerSettings, assignments: Mapping[str, str]) -> dict[str, str]:
    """The words of a recording's settings with others in their places. Raises LabError as :func:`change_settings`
    does.
    """
    predictable = {*settings.words, *PACE} - {"engine"}
    if unknown := sorted(set(assignments) - predictable):
        known = ", ".join(name for name in settings.words if name != "engine")
        raise LabError(f"{unknown[0]} cannot be predicted", f"these can: {known}", WHERE, code="setting-unpredictable")
    for name, word in assignments.items():
        recorded = settings.words.get(name, "")
        if (name in FLAGS or recorded in TRUTHS) and word.lower() not in TRUTHS and (word or settings.vllm):
            raise LabError(
                f"{name}={word} cannot be predicted",
                f"it is one of {', '.join(TRUTHS)}",
                WHERE,
                code="settings-unpredictable",
            )
    words = {**settings.words, **{name: word.lower() if name in FLAGS else word for name, word in assignments.items()}}
    if words["speculation"] not in ("", NONE):
        raise LabError(
            "speculation cannot be predicted",
            "which draft tokens are accepted is the model's answer",
            "record with speculation=none",
            code="setting-unpredictable",
        )
    return words


def change_settings(settings: SchedulerSettings, assignments: Mapping[str, str]) -> SchedulerSettings:
    """The settings of a recording of the labs' scheduler with others in their places.

    Raises:
        LabError: a key is unknown, or what it asks for cannot be predicted from this recording.
    """
    words = changed_words(settings, assignments)
    _require_ours(settings)
    if words["gpt_model_type"] not in BATCHING:
        raise LabError(
            f"gpt_model_type={words['gpt_model_type']} is unknown",
            f"it is one of {', '.join(BATCHING)}",
            WHERE,
            code="setting-unpredictable",
        )
    before = settings.words
    whole = words["enable_chunked_context"].lower() == "false"  # prompts in one piece
    was_whole = before["enable_chunked_context"].lower() == "false"
    usual = settings.context if whole else settings.step_tokens
    if was_whole and not whole and not words["max_num_tokens"]:
        raise LabError(
            "the usual max_num_tokens is unknown",
            "the recording computed prompts in one piece",
            "--set max_num_tokens=256 too",
            code="setting-unpredictable",
        )
    try:
        effective_policy(words["batch_scheduler_policy"], BATCHING[words["gpt_model_type"]])
        order(words["scheduling"])
        batch = int(words["max_num_sequences"] or 16)
        tokens = Features.of(lambda name: words.get(name, ""), usual, batch, settings.context).max_num_tokens
        blocks = settings.blocks
        if words["max_tokens_in_paged_kv_cache"] != before["max_tokens_in_paged_kv_cache"]:
            blocks = int(words["max_tokens_in_paged_kv_cache"]) // settings.block_size
    except ValueError as error:
        raise LabError(
            "these settings cannot be predicted", str(error), WHERE, code="settings-unpredictable"
        ) from error
    if batch < 1 or blocks < 1:
        raise LabError(
            "these settings cannot be predicted", "no request would fit", WHERE, code="settings-unpredictable"
        )
    return replace(settings, words=words, blocks=blocks, step_tokens=tokens)


def scheduler_of(settings: SchedulerSettings, kind: type[Scheduler] = Scheduler) -> Scheduler:
    """A scheduler with these settings, over an engine that counts. Raises LabError: vLLM's is another."""
    words = settings.words
    _require_ours(settings)
    static = BATCHING[words["gpt_model_type"]]
    policy, _ = effective_policy(words["batch_scheduler_policy"], static)
    batch = int(words["max_num_sequences"] or 16)
    chunked = words["enable_chunked_context"].lower() != "false"
    features = Features(chunked, settings.step_tokens, settings.reuse)
    engine = CountingEngine(settings.step_tokens, settings.reuse and words["engine"] in ("", "openvino"))
    kv = KVBudget(settings.blocks, settings.block_size)
    engine.scheduler = kind(engine, kv, policy, batch, static, features, order(words["scheduling"]))
    return engine.scheduler


def _require_ours(settings: SchedulerSettings) -> None:
    if settings.vllm:
        raise LabError(
            "vLLM's scheduler is not replayed here",
            "it needs a process with vLLM",
            "labctl predict RESULT",
            code="replay-needs-vllm",
        )


@dataclass
class Replay:
    """Play requests through a scheduler in virtual time: the only player here.

    Other rules are a subclass of the scheduler, which answers one of its five questions in another way. What happens
    to requests before they reach the scheduler is a subclass of this class (:class:`GatedReplay` of
    :mod:`labsched.replay.admission`).

    Args:
        scheduler: of :func:`scheduler_of`.
        arrivals: in order of arrival.
        seconds: returns how long a step takes, in the unit in which requests arrive; None pins the arrivals to the
            recorded steps, and time stands still.
        gather_s: how long an idle server waits for the rest of a static batch, in the same unit.
        in_flight: send the next request when one ends, as a client with so many in flight; None: at the recorded times.
        seen: called with each computed step; the replay then keeps only the last one.
    """

    scheduler: Scheduler
    arrivals: Sequence[Arrival]
    seconds: StepSeconds | None = None
    in_flight: int | None = None
    seen: Callable[[Step], None] | None = None
    gather_s: float = GATHER_S
    steps: list[Step] = field(default_factory=list)
    arrived: dict[str, float] = field(default_factory=dict)  # when each request came, in this replay
    now: float = 0.0
    steps_over: int = 0  # a step in which requests only wait counts too

    def __post_init__(self) -> None:
        self._tokens = Tokens() if self.scheduler.features.kv_cache_reuse else None
        self.live: dict[str, tuple[Request, Arrival]] = {}
        self._leaving: dict[str, Arrival] = {}  # those of them that will leave
        self._next = self._submitted = self._empty = 0
        self._emptied = self._left_at = 0.0  # when all earlier requests had ended: here, and as recorded
        self._late = 0.0  # how much later than recorded this load began

    @property
    def over(self) -> bool:
        """Whether every request so far has come and gone."""
        return self._next == len(self.arrivals) and self.scheduler.idle

    def run(self) -> list[Step]:
        """All steps until every request has ended.

        Raises:
            LabError: a request could never be admitted, or none is although some wait.
        """
        while not self.over:
            self.advance()
        return self.steps

    def advance(self) -> None:
        """The next step, or what comes before it. Raises LabError as :meth:`run` does."""
        if not (self.scheduler.running or self.scheduler.waiting) and self.scheduler.memory.leaving:
            self._step()  # nothing is computed: memory that was dropped becomes free
            return
        self._leave()
        self._receive()
        if self.scheduler.idle and self._skip():
            self._receive()
        if self.scheduler.idle:
            return
        self._empty = 0 if self._step() else self._empty + 1
        if self._empty > STANDSTILL:
            raise LabError(
                "the scheduler admits no request any more",
                f"{len(self.scheduler.waiting)} wait and none runs",
                "see places and reserve",
                code="replay-stuck",
            )

    @property
    def _coming(self) -> Arrival | None:
        """The next request to arrive; None: all have."""
        return self.arrivals[self._next] if self._next < len(self.arrivals) else None

    def _due(self, arrival: Arrival) -> bool:
        if self.in_flight:
            return len(self.live) < self.in_flight
        if self.seconds is None:
            return arrival.after <= self.steps_over
        return not (arrival.follows and self.live) and self._at(arrival) <= self.now

    def _at(self, arrival: Arrival) -> float:
        """When the next request arrives in this replay, as far as it is known: a new load waits for those before it."""
        if arrival.follows and not self.live:
            self._late = self._emptied - self._left_at
        return arrival.at + self._late

    def _skip(self) -> bool:
        """Let time pass until the next request comes, because nothing happens before; False if none comes."""
        if first := self._coming:
            self.now = max(self.now, self._at(first))
            self.steps_over = max(self.steps_over, first.after)
        return first is not None

    def _receive(self) -> None:
        """Take the requests that have come by now."""
        idle = self.scheduler.idle
        while (arrival := self._coming) and self._due(arrival):
            self._arrive(arrival)
        if idle and self.scheduler.waiting and self.scheduler.static and self.seconds and not self.in_flight:
            self._gather()

    def _gather(self) -> None:
        """Wait a moment for more requests, as the driver of a static batch does."""
        deadline = self.now + self.gather_s
        while len(self.scheduler.waiting) < self.scheduler.max_running:
            arrival = self._coming
            if arrival is None or arrival.follows or self._at(arrival) > deadline:
                break
            self.now = max(self.now, self._at(arrival))
            self._arrive(arrival)
        if self.scheduler.waiting and len(self.scheduler.waiting) < self.scheduler.max_running:
            self.now = deadline

    def _arrive(self, arrival: Arrival) -> None:
        self._next += 1
        self.arrived[arrival.name] = self.now if self.in_flight or self.seconds is None else self._at(arrival)
        self._submit(arrival)

    def _submit(self, arrival: Arrival) -> None:
        """Hand a request that has come to the scheduler. Raises LabError: the scheduler refuses it."""
        self._submitted += 1
        made = arrival.limit if arrival.cancelled else arrival.made
        if self._tokens:
            ids = self._tokens.of(arrival, arrival.prompt + made)
            prompt, output = ids[: arrival.prompt], ids[arrival.prompt :]
        else:
            prompt, output = [0] * arrival.prompt, [0] * made
            output[-1:] = [1]  # the token that ends it, as a stop word would
        ends_with_word = arrival.word and made < arrival.limit
        answer: Any = KnownAnswer(output, ends_with_word, arrival.resumable)
        request = Request(
            id=arrival.name,
            prompt=prompt,
            limit=arrival.limit,
            sampling=answer,
            stop_words=[[output[-1]]] if ends_with_word else [],
            number=self._submitted,
            name=arrival.name,
            tenant=arrival.tenant,
            priority=arrival.priority,
        )
        try:
            self.scheduler.submit(request)
        except Exception as error:  # BadInput; or an order of the learner's own fails
            raise LabError(
                f"request {arrival.name} would be refused", str(error), "other settings", code="replay-request-refused"
            ) from error
        self.live[arrival.name] = request, arrival
        if arrival.cancelled:
            self._leaving[arrival.name] = arrival
        self._left_at = max(self._left_at, arrival.left_at)

    def _leave(self) -> None:
        """Cancel what was cancelled in the recording by now."""
        for name in [name for name, arrival in self._leaving.items() if self._has_left(arrival)]:
            self.scheduler.cancel(self.live[name][0])
            self._end(name)

    def _has_left(self, arrival: Arrival) -> bool:
        if self.seconds is None:
            return arrival.left <= self.steps_over
        return self.arrived[arrival.name] + arrival.left_at - arrival.at <= self.now

    def _end(self, name: str) -> None:
        self._leaving.pop(name, None)
        if self.live.pop(name, None) and not self.live:
            self._emptied = self.now

    def _step(self) -> bool:
        """One step; whether there was a batch."""
        left = bool(self.steps) and self.steps[-1].over >= self.now
        step = self.scheduler.step()
        finished = step.finished
        if step.batch:
            step.ended = {request.name: request.why for request in finished}
            step.began, step.busy = self.now, left
            if self.seconds:
                self.now += self.seconds(step)
            step.over = self.now
            step.requests, step.finished = [], []
            step.engine_us = step.ahead_us = None  # nothing is computed
            if self.seen:
                self.steps.clear()
            self.steps.append(step)
            if self.seen:
                self.seen(step)
        self.steps_over += bool(step.batch or step.waiting)
        for request in finished:
            if request.end is End.FAILED:
                raise LabError(
                    f"request {request.name} failed in the replay",
                    str(request.error),
                    "other settings",
                    code="replay-request-failed",
                )
            self._end(request.name)
        return bool(step.batch)


def ended_by_text(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same requests of a vLLM, where those end by themselves that its front end cancelled for what they said.

    It does so at a stop string, and also when a client leaves; a recording does not say which. Clients leave after the
    same time: a request is one of theirs if it has no token, or if many were cancelled after about as long.
    """
    stays = sorted(arrival.left_at - arrival.at for arrival in arrivals if arrival.cancelled)
    many = max(FEW_ALIKE, MANY_ALIKE * len(stays))

    def stopped(arrival: Arrival) -> bool:
        stay = arrival.left_at - arrival.at
        alike = bisect_right(stays, stay * (1 + ALIKE)) - bisect_left(stays, stay / (1 + ALIKE))
        return arrival.cancelled and arrival.made > 0 and alike < many

    return [replace(arrival, why="stop") if stopped(arrival) else arrival for arrival in arrivals]


class Tokens:
    """Ids for the tokens of recorded sequences: equal where the sequences up to there are equal."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, bytes], int] = {}
        self._fresh = 0

    def of(self, arrival: Arrival, count: int) -> list[int]:
        """The ids of its first ``count`` tokens; what was not recorded is equal to nothing."""
        ids, node = [], 0
        for place in range(count):
            part = arrival.prefixes[place * HASH_BYTES : (place + 1) * HASH_BYTES]
            if len(part) == HASH_BYTES:
                node = self._nodes.setdefault((node, part), len(self._nodes) + 1)
            else:
                self._fresh -= 1
                node = self._fresh
            ids.append(node)
        return ids


@dataclass(frozen=True)
class ReplayResult:
    """A replay that has ended: its steps, and when each request came."""

    steps: list[Step]
    arrived: dict[str, float]


def replay(
    recording: Recording,
    settings: SchedulerSettings,
    seconds: StepSeconds | None = None,
    in_flight: int | None = None,
    kind: type[Scheduler] = Scheduler,
    seen: Callable[[Step], None] | None = None,
) -> ReplayResult:
    """Replay a recording's requests under ``settings`` to their end. Arguments and errors as of :class:`Replay`."""
    gather = gather_s(lambda name: settings.words.get(name, ""))
    done = Replay(scheduler_of(settings, kind), recording.arrivals, seconds, in_flight, seen, gather)
    return ReplayResult(done.run(), done.arrived)
