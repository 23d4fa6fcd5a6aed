"""What `labctl explain` says of a server: which recording it is, who got no token, whose time is long, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from labsched.errors import LabError
from labsched.explain import causes
from labsched.explain.causes import PARTS, ExplainedRequest
from labsched.explain.findings import (
    CACHE_MATTERS,
    SHORT_OF_MEMORY,
    Finding,
    RequestGroup,
    at_percentile,
    everybody,
    findings,
    shortage,
)
from labsched.explain.prefixes import PrefixUse, prefix_use
from labsched.replay.recording import Recording, others_in_words
from labsched.replay.steptime import LEAST
from labsched.replay.vllm_arguments import their_names
from labsched.vllm.decision import NOT_READY
from labsched.vllm.reader import UNFINISHED

MANY_LOST = 0.01  # share of requests without a token from which on their sentence is the first one
FLOODS = 0.5  # of all tokens
MOST_NAMES = 3  # of ranks in a sentence; more are counted
Called = Callable[[ExplainedRequest], str]
COUNSEL = {  # against parts that no setting of the scheduler changes
    causes.LATE: "Give the client more processes, or a lower rate.",
    causes.WAY: "Look at the network and at the client's machine.",
    causes.TRITON: "",
    causes.FRONT_END: "No setting of the scheduler changes that: give the front end more processes "
    "(--api-server-count), a faster tokenizer, or less to do (chat templates, images).",
    causes.HELD: "No setting of the scheduler changes that: see what else the machine computed, or if it compiled.",
    NOT_READY: "Simpler grammars, or another backend for structured outputs, are there sooner; keys and values come as "
    "fast as the connector brings them.",
    causes.DELIVERY: "Look at the front end's processes (--api-server-count), the network and the client.",
}


@dataclass(frozen=True)
class Window:
    """The requests that came in a part of the recording, in seconds since its beginning; None: no limit."""

    start: float | None = None
    end: float | None = None

    @classmethod
    def parse(cls, start: str | None, end: str | None, wall: float | None) -> Window:
        """Read two moments: seconds since the beginning, or times of day. None is no limit.

        Args:
            wall: when the recording begins, in seconds since the epoch; None: it does not say.

        Raises LabError for anything else.
        """
        window = cls(_moment(start, wall), _moment(end, wall))
        if window.start is not None and window.end is not None and window.start >= window.end:
            raise LabError(f"{start} is not before {end}", "", "--from 14:02 --to 14:05", code="window-invalid")
        return window

    def holds(self, request: ExplainedRequest) -> bool:
        after = self.start is None or self.start <= request.began
        return after and (self.end is None or request.began < self.end)


def _moment(text: str | None, wall: float | None) -> float | None:
    """Seconds since the beginning of the recording."""
    if text is None:
        return None
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        pass
    if wall is None:
        raise LabError(
            f"'{text}' is not a number of seconds",
            "this recording does not say at what time of day it was made",
            "--from 60 --to 90 are seconds since its first request",
            code="window-invalid",
        )
    began = datetime.fromtimestamp(wall)
    try:
        if ":" in text and "-" not in text:
            moment = datetime.combine(
                began.date(), datetime.strptime(text, "%H:%M:%S" if text.count(":") > 1 else "%H:%M").time()
            )
            if moment < began.replace(microsecond=0) - timedelta(hours=12):
                moment += timedelta(days=1)  # it began before midnight
        else:
            moment = datetime.fromisoformat(text)
        return moment.timestamp() - wall
    except ValueError as error:
        raise LabError(
            f"'{text}' is not a moment",
            str(error),
            f"seconds since the first request, or a time of day such as {began:%H:%M:%S}",
            code="window-invalid",
        ) from error


@dataclass(frozen=True)
class Explanation:
    """The requests of a server that came in a window, and what is found in them.

    Attributes:
        recordings: one for each engine.
        others: the names of what else the folder holds.
        every: those outside of the window too.
    """

    recordings: Sequence[Recording]
    others: Sequence[str]
    requests: Sequence[ExplainedRequest]
    every: Sequence[ExplainedRequest]
    called: Called

    # -- the first line -----------------------------------------------------------------------------------------------

    def heading(self) -> str:
        """Which recording it is: its span, requests and engine, and what else lies in the folder."""
        names = [recording.name or recording.source for recording in self.recordings]
        which = _list(names) if len(names) <= MOST_NAMES else f"{len(names)} ranks, the first {names[0]}"
        text = f"{which}: {_count(len(self.every), 'request')} in {self.span_s:,.1f} s"
        if (wall := self.wall) is not None:
            text += f" from {datetime.fromtimestamp(wall):%Y-%m-%d %H:%M:%S}"
        text += f"{self._server()}."
        if (fewest := min(len(recording.steps) for recording in self.recordings)) < LEAST:
            steps = _count(fewest, "step")
            text += f" {steps} are too few to say what others' prompts took of them: that part is not recorded."
        if len(self.requests) != len(self.every):
            text += f" {len(self.requests):,} of them came in the chosen time."
        return f"{text} {others_in_words(self.others)}".rstrip()

    def _server(self) -> str:
        settings = self.recordings[0].settings
        server = f", vLLM {settings.recorded['version']}" if "version" in settings.recorded else ""
        engines = [recording.engine for recording in self.recordings if recording.engine is not None]
        if len(engines) > 1:
            which = f"engines {_list(engines)}" if len(engines) <= MOST_NAMES else f"{len(engines)} engines"
            return f"{server}, {which} of one server"
        return f"{server}, engine {engines[0]}" if server and engines else server

    @property
    def wall(self) -> float | None:
        """When it begins, in seconds since the epoch; None: not recorded."""
        walls = [recording.wall for recording in self.recordings if recording.wall is not None]
        return min(walls) if walls else None

    @property
    def span_s(self) -> float:
        """From the first request to the end of the last step."""
        starts = [recording.zero if recording.wall is None else recording.wall for recording in self.recordings]
        ends = [start + recording.steps[-1].over for start, recording in zip(starts, self.recordings, strict=True)]
        return max(ends) - min(starts)

    # -- sentences ----------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> Sequence[ExplainedRequest]:
        """The requests that got no token, neither in a step nor by their end: the step itself may be cut off."""
        return [request for request in self.requests if not request.answered and not request.arrival.made]

    def of(self, metric: str) -> list[Finding]:
        """The findings about a metric, the weightiest first."""
        return findings(self.requests, self.recordings[0].settings, metric, self.every)

    def about_lost(self) -> str:
        """Who got no token; "" if every request got one."""
        lost = self.lost
        if not lost:
            return ""
        left = sum(request.arrival.cancelled for request in lost)
        waiting = sum(request.arrival.why == UNFINISHED for request in lost)
        ends = [
            f"{count:,} {what}"
            for count, what in (
                (left, "left or failed"),
                (len(lost) - left - waiting, "ended without one"),
                (waiting, "still waited at the end of the recording"),
            )
            if count
        ]
        waited = max(request.whole("TTFT") for request in lost)
        sums: dict[str, float] = {}
        for request in lost:
            for part, ms in request.ttft.items():
                sums[part] = sums.get(part, 0.0) + ms
        whole = sum(sums.values())
        text = f"{len(lost):,} of {_count(len(self.requests), 'request')} ({len(lost) / len(self.requests):.0%}) "
        text += f"never got a token: {_list(ends)}, after {waited:,.0f} ms at most."
        if whole:
            part = max(sums, key=lambda part: sums[part])
            text += f" {sums[part] / whole:.0%} of their time is {PARTS.get(part, part)}."
        return text

    @property
    def lost_first(self) -> bool:
        """Whether so many got no token that p99 is not the worst that happened."""
        answered = everybody(self.requests).of("TTFT")
        usual = at_percentile(answered, "TTFT", 50).whole("TTFT") if answered else 0.0
        # Requests that had only just come when the recording ended have lost nothing yet.
        just_came = sum(one.arrival.why == UNFINISHED and one.whole("TTFT") < usual for one in self.lost)
        return len(self.lost) - just_came >= MANY_LOST * len(self.requests)

    def about(self, found: Finding) -> str:
        """The sentence of a finding, without advice."""
        part = PARTS.get(found.part, found.part)
        if found.is_victim and found.behind:
            text = self._behind(found, found.behind)
            text += f" the p99 of their {found.metric} is {found.p99:,.0f} ms at a p50 of {found.p50:,.0f}; "
            return f"{text}{found.share:.0%} of it is {part}."
        whose = " of the others" if self.lost_first and self.lost else ""
        text = f"p99 of {found.metric}{whose} is {found.p99:,.0f} ms"
        if found.alone:
            text += f", that of {_count(len(found.alone), 'request')} {found.alone.words} alone"
        text += f"; {found.share:.0%} of it is {part}"
        if other := found.culprit:
            arrival = other.arrival
            tenant = "" if arrival.tenant is None else f", tenant {arrival.tenant}"
            lengths = f"{arrival.prompt:,} prompt and {arrival.made:,} output tokens"
            text += f", most often for {self.called(other)} ({lengths}{tenant})"
        if found.second:
            text += f"; {found.shares[found.second]:.0%} is {PARTS.get(found.second, found.second)}"
        return f"{text}."

    def _behind(self, found: Finding, other: RequestGroup) -> str:
        """Who waits behind whom, up to a colon."""
        who = f"{_count(len(found.group), 'request')} {found.group.words}"
        verb = "waits" if len(found.group) == 1 else "wait"
        text = f"{who} {verb} behind {len(other):,} {other.words}:"
        if other.kind == "tenant":
            tokens = {id(r): r.arrival.prompt + r.tokens for r in (*self.requests, *other.requests)}
            share = sum(tokens[id(r)] for r in other.requests) / sum(tokens.values())
            if share > FLOODS:
                who = f"{who} wait for {_count(len(other), 'request')} that are {share:.0%} of all tokens"
                return f"Tenant {other.title} floods the server. {who}:"
        if other.kind == "priority" and int(found.group.title) < int(other.title):
            policy = self.recordings[0].settings.words["scheduling"]
            because = "" if policy == "priority" else f" (scheduling is {policy or 'fcfs'}, which does not look at it)"
            return f"Priority inversion{because}. {text}"
        return text

    def counsel(self, found: Finding) -> str:
        """What helps against a part that no setting changes; "" if there is nothing to say."""
        if found.part in SHORT_OF_MEMORY:
            return self._memory()
        if found.part == causes.HELD and found.second:
            return ""
        return COUNSEL.get(found.part, "")

    def _memory(self) -> str:
        """How many blocks were missing, and where memory comes from."""
        missing = max(shortage(recording) for recording in self.recordings)
        settings = self.recordings[0].settings
        if not missing:
            return ""
        size = f"{missing * settings.block_size:,} tokens"
        if "block_bytes" in settings.recorded:
            size += f", {missing * int(settings.recorded['block_bytes']) / 2**30:,.1f} GiB"
        text = f"At its worst moment the server was short of {_count(missing, 'KV block')} ({size}): "
        text += f"it has {settings.blocks:,}."
        if settings.vllm:
            text += (
                " Memory comes from gpu_memory_utilization, kv_cache_dtype=fp8, another replica, or fewer requests at "
                "once (max_num_seqs), which then wait for a slot instead."
            )
        return text

    def about_prefixes(self, found: Finding) -> str:
        """What came from the prefix cache and why the rest did not; "" where prompts are not what matters."""
        if not {found.part, found.second} & {causes.NO_TOKENS, causes.PROMPTS, causes.PREFILL, causes.NO_PREFIX}:
            return ""
        settings = self.recordings[0].settings
        use = prefix_use(self.requests, settings, self.every)
        if use is None and not settings.reuse:
            tokens = sum(request.arrival.prompt for request in self.requests)
            name = next(iter(their_names(settings, {"enable_kv_cache_reuse": ""})))
            return (
                f"Prefix caching is off for {_count(tokens, 'prompt token')}, and what they share is not recorded: "
                f"{name}=true costs next to nothing and shows it."
            )
        if use is None:
            return "Prefix cache: not recorded (the recording has no hashes of prompts)."
        if not settings.reuse:
            again = (use.evicted + use.unfinished) / use.tokens
            text = f"Prefix caching is off for {_count(use.tokens, 'prompt token')}"
            return f"{text}; {again:.0%} of them are the beginning of an earlier prompt too."
        text = f"{use.cached / use.tokens:.0%} of {_count(use.tokens, 'prompt token')} came from the prefix cache"
        reasons = _prefix_reasons(use, settings.block_size)
        return "; ".join([text, *reasons]) + "."

    def counts(self) -> Mapping[str, int]:
        """How many requests there are, and how many of them got no token."""
        return {"requests": len(self.requests), "without_token": len(self.lost)}


def _prefix_reasons(use: PrefixUse, size: int) -> list[str]:
    """Why prompt tokens were not found, the reasons that matter."""
    reasons = []
    for count, words in (
        (use.evicted, "had been in it and were evicted before they were needed again"),
        (use.unfinished, "were still being computed by another request"),
    ):
        if count >= CACHE_MATTERS * use.tokens:
            reasons.append(f"{count / use.tokens:.0%} {words}")
    if use.cached >= 0.5 * use.tokens or not use.compared:
        return reasons
    share = use.new_at_once / use.compared
    if share >= 0.5:
        reasons.append(
            f"{share:.0%} of prompts differ from every earlier one in their first block ({size} tokens): a text that "
            "they share is found only if it comes first, before what changes"
        )
    elif use.differ_after is not None:
        reasons.append(f"half of the prompts differ from every earlier one after {use.differ_after:,} tokens or sooner")
    return reasons


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _list(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
