"""What the slowest requests of a result waited for, in sentences and tables: for `labctl explain` and without labctl.

The sentences are `labsched.explain.explanation`'s. Here a setting against the largest part is chosen, tried where the
scheduler is ours, and all is put in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from labsched.errors import LabError
from labsched.explain import causes, findings
from labsched.explain.causes import ExplainedRequest
from labsched.explain.explanation import Called, Explanation, Window
from labsched.explain.findings import TOKEN_TIMES, Finding, RequestGroup, RequestKey, rank
from labsched.replay import answer, clients, recording
from labsched.replay.player import change_settings
from labsched.replay.recording import Recording, Sent
from labsched.replay.steptime import require_steps
from labsched.replay.vllm_arguments import labs_names, their_names

SHORTEST_MS = 0.05  # of a part that the table shows
HELPS = 0.95  # of a p99, or less: then a setting is worth a try
WIDE = 0.25  # of a time: an interval that is said with it
AS_GOOD = 1.1  # times the lowest p99: of settings as good the first is named
PERCENTILES = ("p50", "p95", "p99")  # as findings.RANKS
Table = Callable[[Sequence[Sequence[object]], Sequence[str]], str]  # rows and header; numbers are in all but the ends


Predicts = Callable[[Recording], answer.Predictor]
ServerTimes = Mapping[str, Mapping[RequestKey, float]]  # ms, by metric and request


@dataclasses.dataclass(frozen=True)
class Advice:
    """A setting, and what a replay makes of every request's times; {} where there is none, or nothing was replayed.

    Attributes:
        before, after: TTFT and TPOT (ms) by metric and request, as predicted for the recorded settings and with it.
    """

    change: Mapping[str, str] = dataclasses.field(default_factory=dict)
    before: ServerTimes = dataclasses.field(default_factory=dict)
    after: ServerTimes = dataclasses.field(default_factory=dict)

    def p99(self, metric: str, group: RequestGroup) -> tuple[float, float] | None:
        """The p99 (ms) of a group without and with it; None: no replay says."""
        names = {(request.engine, request.name) for request in group.requests}
        found = [
            sorted(times.get(metric, {})[name] for name in names if name in times.get(metric, {}))
            for times in (self.before, self.after)
        ]
        return (found[0][rank(len(found[0]), 99)], found[1][rank(len(found[1]), 99)]) if all(found) else None

    def helps(self, metric: str, group: RequestGroup) -> bool:
        """Whether it takes the p99 of this group down."""
        p99 = self.p99(metric, group)
        return p99 is not None and p99[1] <= HELPS * p99[0]


def called_by_client(read: Sequence[Recording]) -> Called:
    """Call a request by the id that its client and vLLM's log know; by its name where it has none."""

    def called(request: ExplainedRequest) -> str:
        name = request.arrival.id or request.name
        return f"{name} of engine {request.engine}" if len(read) > 1 else name

    return called


def explain_result(
    result: Path,
    phase: str | None = None,
    start: str | None = None,
    end: str | None = None,
    client: Path | None = None,
    naming: Callable[[Sequence[Recording]], Called] = called_by_client,
    predicts: Predicts | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Explain the requests of a result that came in the chosen time.

    Args:
        result: a folder that `labctl run` or the recorder in vLLM wrote, or one phase's file.
        phase: which of its recordings; None for the only one, or the newest.
        start, end: numbers of seconds since the first request, or times of day; None is no limit.
        client: what the client wrote of its requests (:func:`clients.read_clients`); None: what lies beside.
        naming: from the recordings, what a person calls their requests.
        predicts: what tries settings on a recording of vLLM; None: none is tried there.
        tell: is told how far the trying is.

    Raises:
        LabError: there is no such result or request, or a recording is damaged.
    """
    if not result.exists():
        raise LabError(
            f"{result} does not exist",
            "",
            "name the folder of a result, or of LABS_RECORD; or a stack that is up, and one of its requests",
            code="result-missing",
        )
    engines = recording.read_server(result, phase)
    sent = _joined(client, engines) if client else clients.sent_requests
    read = [engine.in_turn(sent(engine)) for engine in engines]
    every = causes.explain_server(read, sent)
    whole = Explanation(read, recording.other_recordings(result, read), every, every, naming(read))
    window = Window.parse(start, end, whole.wall)
    chosen = [request for request in every if window.holds(request)]
    if not chosen:
        raise LabError(
            f"{result} has no request that came in this time",
            f"its {len(every):,} requests came in {whole.span_s:,.1f} s",
            "--from and --to are seconds since its first request, or times of day",
            code="recording-empty",
        )
    return Diagnosis(dataclasses.replace(whole, requests=chosen), predicts, tell)


def _joined(client: Path, engines: Sequence[Recording]) -> clients.ClientTimes:
    """What the client's file says of each engine's requests. Raises LabError: it has no request of any engine."""
    read, found, unjoined = clients.read_clients(client), dict[str | None, Mapping[str, Sent]](), list[LabError]()
    for engine in engines:
        try:
            found[engine.engine] = read(engine)
        except LabError as error:
            if error.code != clients.UNJOINED:
                raise
            unjoined.append(error)
    if not found:
        raise unjoined[0]
    return lambda engine: found.get(engine.engine, {})


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What is found in an explanation, with what would change it."""

    told: Explanation
    predicts: Predicts | None = None
    tell: Callable[[str], None] = lambda _: None

    @cached_property
    def found(self) -> Mapping[str, Sequence[Finding]]:
        """The findings of each metric that any request has, the weightiest first."""
        found = {metric: self.told.of(metric) for metric in TOKEN_TIMES}
        return {metric: of_metric for metric, of_metric in found.items() if of_metric}

    @cached_property
    def _predictors(self) -> Sequence[answer.Predictor]:
        """One for each recording; [] if its settings cannot be replayed."""
        read = self.told.recordings
        predicts = self.predicts if read[0].settings.vllm else answer.Predictor.of
        try:
            return [] if read[0].settings.own or not predicts else [predicts(recording) for recording in read]
        except LabError:
            return []

    def _times(self, change: Mapping[str, str], replicas: int = 1, edge: int | None = None) -> ServerTimes:
        """The times of the requests of all engines, as predicted. Raises LabError: the scheduler refuses the change."""
        every: dict[str, dict[RequestKey, float]] = {metric: {} for metric in TOKEN_TIMES}
        for predictor in self._predictors:
            read = predictor.recording
            for metric, times in predictor.times(labs_names(read.settings, change), replicas, edge).items():
                every[metric] |= {(read.engine, name): ms for name, ms in times.items()}
        return every

    @cached_property
    def tried(self) -> Sequence[Advice]:
        """The settings that were replayed, with what each makes of every request's times; [] if none can be."""
        settings, first = self.told.recordings[0].settings, [of_metric[0] for of_metric in self.found.values()]
        if settings.vllm:
            changes = findings.candidates(settings, self.told.requests)
        else:
            changes = [*{tuple(one.items()): dict(one) for of in first for one in of.changes}.values()]
        if not first or not changes or not self._predictors:  # without a token there is no p99 to take down
            return []
        try:
            before = self._times({})
        except LabError:
            return []
        tried: list[Advice] = []
        for number, change in enumerate(changes, 1):
            if settings.vllm:  # which takes its time
                self.tell(f"{number} of {len(changes)} settings")
            with contextlib.suppress(LabError):  # the scheduler refuses this one
                tried.append(Advice(change, before, self._times(change)))
        return tried

    @cached_property
    def two_replicas(self) -> Advice | None:
        """What two servers would make of it that get the requests in turn; None: it is not known."""
        if not self.tried or not self.told.recordings[0].settings.vllm:
            return None
        self.tell("two replicas")
        try:
            return Advice({}, self.tried[0].before, self._times({}, replicas=2))
        except LabError:
            return None

    @cached_property
    def advice(self) -> Mapping[str, Advice]:
        """What is advised for each metric: never one value of a setting for this and another for that.

        Of the settings that are about as good as the best for the group that the first sentence is about, the one that
        is worst for no other p99.
        """
        advice: dict[str, Advice] = {}
        for metric, (found, *_) in self.found.items():
            settings, group = self.told.recordings[0].settings, found.group
            tried = [one for one in self.tried if settings.vllm or one.change in found.changes]
            taken = [other.change for other in advice.values() if other.change]
            free = [one for one in tried if all(one.change == other or not {*one.change} & {*other} for other in taken)]
            helping = [one for one in free if one.helps(metric, group)]

            def after(one: Advice, metric: str = metric, group: RequestGroup = group) -> float:
                return (one.p99(metric, group) or (0.0, math.inf))[1]

            def price(one: Advice) -> float:
                others = (one.p99(metric, group) for _, metric, group in self._shown)
                return max(later / earlier for earlier, later in filter(None, others) if earlier)

            if helping:
                best = min(map(after, helping))
                advice[metric] = min((one for one in helping if after(one) <= AS_GOOD * best), key=price)
            elif any(one.helps(metric, group) for one in tried):  # it is the other way round for the first metric
                advice[metric] = Advice()
            elif tried:
                advice[metric] = dataclasses.replace(tried[0], change={}) if settings.vllm else tried[0]
            else:
                untried = (one for one in found.changes if not any({*one} & {*other} for other in taken))
                advice[metric] = Advice(next(untried, {}))
        return advice

    @cached_property
    def intervals(self) -> Mapping[str, tuple[float, float]]:
        """Between which times (ms) the p99 may lie that is promised of each metric's advice."""
        found = {}
        for metric, advice in self.advice.items():
            group = self.found[metric][0].group
            if advice.change and advice.after:
                edges = [dataclasses.replace(advice, after=self._times(advice.change, edge=edge)) for edge in (0, 1)]
                every = [p99[1] for one in (advice, *edges) if (p99 := one.p99(metric, group))]
                found[metric] = min(every), max(every)
        return found

    @property
    def slowest(self) -> ExplainedRequest | None:
        """The request at the p99 of TTFT; None: no request got a token."""
        return self.found["TTFT"][0].request if "TTFT" in self.found else None

    def paragraphs(self, table: Table) -> Iterator[str]:
        """All that is said, sentence by sentence and table by table, in the order in which it is to be read."""
        told, lost = self.told, self.told.about_lost()
        yield told.heading()
        if lost and told.lost_first:
            yield lost
        for metric in self.found:
            yield from self._about(metric)
            yield from self._tables(metric, table)
        if lost and not told.lost_first:
            yield lost
        if self.tried and told.recordings[0].settings.vllm:
            yield from self._trials(table)

    def sentences(self) -> list[str]:
        """The same without tables."""
        return [paragraph for paragraph in self.paragraphs(lambda *_: "") if paragraph]

    def to_json(self) -> dict[str, Any]:
        """The document of `explain --json`; times in ms."""
        told, shown = self.told, self._shown
        return {
            "recordings": [read.name or read.source for read in told.recordings],
            "others": list(told.others),
            "span_s": told.span_s,
            **told.counts(),
            "sentences": self.sentences(),
            **{metric: self._metric_to_json(metric) for metric in self.found},
            "tried": [
                {"set": dict(one.change), "p99_ms": {title: one.p99(metric, group) for title, metric, group in shown}}
                for one in self.tried
            ],
        }

    def _metric_to_json(self, metric: str) -> dict[str, Any]:
        first, advice = self.found[metric][0], self.advice[metric]
        chosen, parts = self._parts(metric)
        return {
            "percentiles": dict(zip(PERCENTILES, (request.name for request in chosen), strict=True)),
            "names": dict(zip(PERCENTILES, map(self.told.called, chosen), strict=True)),
            "parts_ms": dict(parts),
            "largest": {
                "part": first.part,
                "share": first.share,
                "of": first.group.title,
                "behind": first.behind.title if first.behind else None,
                "culprit": first.culprit.name if first.culprit else None,
            },
            "change": dict(advice.change),
            "p99_ms": advice.p99(metric, first.group),
            "p99_interval_ms": self.intervals.get(metric),
            "classes": [[_class_to_json(of_class) for of_class in kind] for kind in self._differing(metric)],
        }

    def _about(self, metric: str) -> Iterator[str]:
        """The sentences about a metric: each finding, what would help, and where the prompts came from."""
        first, *others = self.found[metric]
        yield self._with_advice(first)
        yield from filter(None, map(self.told.about, others))
        if metric == "TTFT":
            yield from list(filter(None, map(self.told.about_prefixes, self.found[metric])))[:1]

    def _tables(self, metric: str, table: Table) -> Iterator[str]:
        """A table for each class whose times differ, and one of the parts."""
        for kind in self._differing(metric):
            cells = [
                (of.group.title, f"{len(of.group):,}", f"{of.p50:,.1f}", f"{of.p99:,.1f}", f"{of.share:.0%} {of.part}")
                for of in kind
            ]
            header = (kind[0].group.kind, "requests", "p50", "p99", f"{metric}, ms: largest part of the p99")
            yield table(cells, header)
        chosen, parts = self._parts(metric)
        rows = [(part, *(f"{ms:,.1f}" for ms in values)) for part, values in parts if max(values) >= SHORTEST_MS]
        rows.append(("request", *map(self.told.called, chosen)))
        yield table(rows, (f"{metric}, ms", *PERCENTILES))

    def _parts(self, metric: str) -> tuple[list[ExplainedRequest], list[tuple[str, list[float]]]]:
        return findings.cause_table(findings.everybody(self.told.requests).of(metric), metric)

    def _differing(self, metric: str) -> list[list[Finding]]:
        told = self.told
        return findings.differing(told.requests, told.recordings[0].settings, metric, told.every)

    def _with_advice(self, found: Finding) -> str:
        """The sentence of a finding, and what another setting would make of it."""
        told, advice = self.told, self.advice[found.metric]
        read = told.recordings[0]
        text = " ".join(filter(None, (told.about(found), told.counsel(found))))
        named = _in_words(read, advice.change)
        p99 = advice.p99(found.metric, found.group)
        if p99 is None:
            if advice.change and not read.settings.own:
                if refusal := _refusal(read, advice.change):
                    why = f"{refusal.what} ({refusal.why})"
                    return f"{text} A setting against it, not tested: {named}. Nor can a replay test it: {why}."
                text = f"{text} A setting against it, not tested: {named}."
                command = f"python -m labsched predict {read.source} --set {named}"
                if not read.settings.vllm:
                    return f"{text} {command} says what it does."
                where = "in vLLM's environment, says what it does; so does labctl, after labctl engines install vllm"
                return f"{text} {command}, {where}."
            return text
        before, after = p99
        if not advice.change:
            text += f" None of the {len(self.tried)} settings that were replayed takes {1 - HELPS:.0%} off it."
            if (two := self.two_replicas) and two.helps(found.metric, found.group):
                text += f" Two replicas would: {_ms((two.p99(found.metric, found.group) or (0.0, 0.0))[1])}."
            return text
        predicted = f"the prediction for this p99 is {_ms(after)}"
        if not advice.helps(found.metric, found.group):
            return f"{text} {named} would not help: {predicted}; as recorded, {_ms(before)}."
        price = []
        for title, metric, group in self._shown:
            other = advice.p99(metric, group)
            asked = (metric, group.title) == (found.metric, found.group.title)
            if other and not asked and not HELPS <= other[1] / other[0] <= 1 / HELPS:
                price.append(f"that of {title} {_ms(other[1])} instead of {_ms(other[0])}")
        low, high = self.intervals[found.metric]
        if high - low > WIDE * after:
            predicted += f" (between {_ms(low)} and {_ms(high)})"
        predicted = f"{predicted} instead of {_ms(before)}"
        return f"{text} With {named} and arrivals as recorded, {'; '.join([predicted, *price])}."

    @cached_property
    def _shown(self) -> Sequence[tuple[str, str, RequestGroup]]:
        """The groups whose p99 is shown for each setting: the classes that a finding names, or else all requests."""
        shown: dict[tuple[str, str], tuple[str, str, RequestGroup]] = {}
        for metric, found in self.found.items():
            groups = [group for one in found if one.is_victim for group in (one.group, one.behind) if group]
            groups = groups or [findings.everybody(self.told.requests)]
            for group in groups:
                shown.setdefault((metric, group.title), (f"{metric} {group.words}".strip(), metric, group))
        return [*shown.values()]

    def _trials(self, table: Table) -> Iterator[str]:
        """The table of what was replayed, the lowest p99 first."""
        read = self.told.recordings[0]

        def cells(one: Advice, after: bool) -> list[str]:
            return [f"{(one.p99(metric, group) or (0.0, 0.0))[after]:,.1f}" for _, metric, group in self._shown]

        _, metric, group = self._shown[0]
        ranked = sorted(self.tried, key=lambda one: (one.p99(metric, group) or (0.0, 0.0))[1])
        rows = [("as recorded", *cells(self.tried[0], False))]
        rows += [(_in_words(read, one.change), *cells(one, True)) for one in ranked]
        if two := self.two_replicas:
            rows.append(("two replicas", *cells(two, True)))
        yield table(rows, ("replayed with", *(f"p99 of {title}, ms" for title, *_ in self._shown)))


def _refusal(read: Recording, change: Mapping[str, str]) -> LabError | None:
    """Why no replay of this recording says what a change does; None: one does."""
    from labsched.replay.vllm_scheduler import change_vllm_settings

    try:
        changed = change_vllm_settings if read.settings.vllm else change_settings
        if changed(read.settings, labs_names(read.settings, change)).pace is None:
            require_steps(len(read.steps))
    except LabError as error:
        return error
    return None


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _in_words(read: Recording, change: Mapping[str, str]) -> str:
    """A change as it is set: for a recording of vLLM under vLLM's names."""
    return " --set ".join(f"{name}={value}" for name, value in their_names(read.settings, change).items())


def _class_to_json(found: Finding) -> dict[str, Any]:
    return {
        "kind": found.group.kind,
        "class": found.group.title,
        "requests": len(found.group),
        "p50_ms": found.p50,
        "p99_ms": found.p99,
        "part": found.part,
        "share": found.share,
        "behind": found.behind.title if found.behind else None,
    }
