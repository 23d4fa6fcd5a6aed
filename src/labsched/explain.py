"""What the slowest requests of a result waited for, in sentences and tables: for `labctl explain` and without labctl.

The sentences are `labsched.explanation`'s. Here a setting against the largest part is chosen, tried where the
scheduler is ours, and all is put in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from labsched import answer, causes, clients, findings, recording
from labsched.causes import ExplainedRequest
from labsched.errors import LabError
from labsched.explanation import Called, Explanation, Window
from labsched.findings import TOKEN_TIMES, Finding
from labsched.recording import Recording
from labsched.vllm.arguments import their_names

SHORTEST_MS = 0.05  # of a part that the table shows
HELPS = 0.95  # of a p99, or less: then a setting is worth a try
AS_GOOD = 1.1  # times the lowest p99: of settings as good the first is named
PERCENTILES = ("p50", "p95", "p99")  # as findings.RANKS
Table = Callable[[Sequence[Sequence[object]], Sequence[str]], str]  # rows and header; numbers are in all but the ends


Predicts = Callable[[Recording], answer.Predictor]


class Advice(NamedTuple):
    """A setting against a part; {} where there is none. ``p99``: of each metric (ms), as predicted for the recorded
    settings and with it; {} where nothing was tried.
    """

    change: Mapping[str, str] = {}
    p99: Mapping[str, tuple[float, float]] = {}

    def helps(self, metric: str) -> bool:
        """Whether it takes this metric's p99 down."""
        return metric in self.p99 and self.p99[metric][1] <= HELPS * self.p99[metric][0]


def called_by_client(read: Sequence[Recording]) -> Called:
    """Call a request by the id that its client and vLLM's log know; by its name where it has none."""

    def called(request: ExplainedRequest) -> str:
        name = request.arrival.id or request.name
        return f"{name} of engine {request.engine}" if len(read) > 1 else name

    return called


def explain_result(
    result: Path,
    phase: str = "",
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
        phase: which of its recordings; "" for the only one, or the newest.
        start, end: numbers of seconds since the first request, or times of day; None is no limit.
        client: what the client wrote of its requests (:func:`labsched.clients.read_clients`); None: what lies beside.
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
    sent = clients.read_clients(client) if client else clients.sent_requests
    read = [engine.in_turn(sent(engine)) for engine in recording.read_server(result, phase)]
    every = causes.explain_server(read, sent)
    whole = Explanation(read, recording.other_recordings(result, read), every, len(every), naming(read))
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
    def tried(self) -> Sequence[Advice]:
        """The settings that were replayed, with what each makes of every metric; [] if none can be."""
        read, first = self.told.recordings[0], [of_metric[0] for of_metric in self.found.values()]
        settings = read.settings
        predicts = self.predicts if settings.vllm else answer.Predictor.of
        if settings.own or not predicts:
            return []
        if settings.vllm:
            changes = findings.candidates(settings, self.told.requests)
        else:
            changes = [
                dict(change) for change in {tuple(one.items()): one for of in first for one in of.changes}.values()
            ]
        if not changes:
            return []
        tried: list[Advice] = []
        try:
            predictor = predicts(read)
            before = predictor.likeliest({})
        except LabError:
            return []
        for number, change in enumerate(changes, 1):
            if settings.vllm:  # which takes its time
                self.tell(f"{number} of {len(changes)} settings")
            with contextlib.suppress(LabError):  # the scheduler refuses this one
                after = predictor.likeliest(change)
                names = {metric: f"{metric.lower()}_p99_ms" for metric in self.found}
                p99 = {metric: (before[name], after[name]) for metric, name in names.items() if name in before}
                tried.append(Advice(change, p99))
        return tried

    @cached_property
    def advice(self) -> Mapping[str, Advice]:
        """What is advised for each metric: never one value of a setting for this and another for that."""
        advice: dict[str, Advice] = {}
        for metric, (found, *_) in self.found.items():
            settings = self.told.recordings[0].settings
            tried = [one for one in self.tried if settings.vllm or one.change in found.changes]
            taken = [other.change for other in advice.values() if other.change]
            free = [one for one in tried if all(one.change == other or not {*one.change} & {*other} for other in taken)]
            helping = [one for one in free if one.helps(metric)]
            if helping:
                best = min(one.p99[metric][1] for one in helping)
                advice[metric] = next(one for one in helping if one.p99[metric][1] <= AS_GOOD * best)
            elif any(one.helps(metric) for one in tried):  # it is the other way round for the first metric
                advice[metric] = Advice()
            elif tried:
                advice[metric] = Advice({}, tried[0].p99) if settings.vllm else tried[0]
            else:
                untried = (one for one in found.changes if not any({*one} & {*other} for other in taken))
                advice[metric] = Advice(next(untried, {}))
        return advice

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
        told = self.told
        return {
            "recordings": [read.name or read.source for read in told.recordings],
            "others": list(told.others),
            "span_s": told.span_s,
            **told.counts(),
            "sentences": self.sentences(),
            **{metric: self._metric_to_json(metric) for metric in self.found},
            "tried": [{"set": dict(one.change), "p99_ms": dict(one.p99)} for one in self.tried],
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
            "p99_ms": advice.p99.get(metric),
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
        return findings.differing(self.told.requests, self.told.recordings[0].settings, metric)

    def _with_advice(self, found: Finding) -> str:
        """The sentence of a finding, and what another setting would make of it."""
        told, advice = self.told, self.advice[found.metric]
        read = told.recordings[0]
        text = " ".join(filter(None, (told.about(found), told.counsel(found))))
        named = _in_words(read, advice.change)
        whose = " of all requests" if found.is_victim or len(told.requests) < told.came else ""
        if not advice.p99:
            if advice.change and not read.settings.own:
                command = f"labctl predict {read.source} --set {named}"
                return f"{text} A setting against it, not tested: {named}. {command} says what it does."
            return text
        before, after = advice.p99[found.metric]
        if not advice.change:
            return f"{text} None of the {len(self.tried)} settings that were replayed takes {1 - HELPS:.0%} off it."
        predicted = f"the prediction for p99{whose} is {after:,.0f} ms"
        if not advice.helps(found.metric):
            return f"{text} {named} would not help: {predicted}; as recorded, {before:,.0f}."
        price = [
            f", and for that of {other} {later:,.0f} instead of {earlier:,.0f}"
            for other, (earlier, later) in advice.p99.items()
            if other != found.metric
        ]
        return f"{text} With {named} {predicted} instead of {before:,.0f}{''.join(price)}."

    def _trials(self, table: Table) -> Iterator[str]:
        """The table of what was replayed, the lowest p99 first."""
        read, metrics = self.told.recordings[0], list(self.found)
        ranked = sorted(self.tried, key=lambda one: [one.p99[metric][1] for metric in metrics])
        rows = [("as recorded", *(f"{before:,.1f}" for before, _ in self.tried[0].p99.values()))]
        for one in ranked:
            rows.append((_in_words(read, one.change), *(f"{after:,.1f}" for _, after in one.p99.values())))
        yield table(rows, ("replayed with", *(f"{metric} p99, ms" for metric in metrics)))


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
