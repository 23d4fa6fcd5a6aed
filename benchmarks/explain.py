"""Is what `explain` says true? Situations that operators report, in virtual time, with every setting really run.

For each situation (:mod:`benchmarks.situations`): is the first sentence about the true cause and its victims; is the
setting that it names one of the two best of all that were run, and never one that makes its metric worse; how far is
each prediction off, and does the truth lie inside the interval?
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import situations
from benchmarks.situations import Situation
from benchmarks.virtual_vllm import DEFAULT, Run, serve
from labctl.recordings.vllm import _read_first
from labctl.runtimes.layers import layer
from labctl.workspace import Workspace
from labkit.tables import format_table

METRICS = ("TTFT", "TPOT")
FIGURES = tuple(f"{metric.lower()}_p{p}_ms" for metric in METRICS for p in (50, 99))
AS_GOOD = 1.1  # times the best p99, or less, is as good
WORTH = 0.9  # of the recorded p99, or less: a setting that reaches it should be named
WORSE = 1.02  # of the recorded p99, or more
NEAR = 0.1  # relative error of a prediction that counts as right
RECORDED, TRUE = 1, 2  # seeds of the device's noise
Arguments = Mapping[str, Any]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--situation", action="append", help="explain: only this situation; may be repeated")
    parser.add_argument("--quick", action="store_true", help="explain: no intervals, in a third of the time")
    parser.add_argument("--say", action="store_true", help="explain: print what explain says of each")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    packages = layer("vllm", Workspace.find()).require()
    names = asked.situation or list(situations.situations())
    rows, judged = [], []
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_read_first, initargs=(str(packages),)) as pool:
        for name in names:
            found = pool.submit(judge, name, not asked.quick).result()
            judged.append(found)
            rows.append(_row(found))
            print(*rows[-1], sep=" | ", flush=True)
            if asked.say:
                print("\n".join(f"    {sentence}" for sentence in found["sentences"]), flush=True)
    print("\n" + format_table(rows, HEADER))
    print(format_table(*_errors(judged)))
    summary = _summary(judged)
    print(format_table(summary, ("what", "right")))
    return {"situations": judged, "rows": summary}


def judge(name: str, intervals: bool = True) -> dict[str, Any]:
    """Record a situation, explain it, and run every setting really. In the process with vLLM."""
    began = time.process_time()
    situation = situations.situations()[name]()
    with TemporaryDirectory() as folder:
        found = _Judged(name, situation, Path(folder), intervals).found()
    return {**found, "processor_s": time.process_time() - began}


@dataclass
class _Judged:
    name: str
    situation: Situation
    folder: Path
    intervals: bool
    _runs: dict[str, list[Run]] = field(default_factory=dict)

    def found(self) -> dict[str, Any]:
        from labsched.explain.result import explain_result
        from labsched.replay import answer
        from labsched.replay.figures import Times, request_times
        from labsched.replay.recording import Recording
        from labsched.replay.vllm_arguments import labs_names
        from labsched.replay.vllm_scheduler import change_vllm_settings, replay_vllm

        situation = self.situation
        for rank, load in enumerate(situation.loads):
            serve(load, situation.arguments, situation.device, self.folder, situation.in_flight, rank, RECORDED)
        predictions: dict[str, tuple[Mapping[str, float], answer.Prediction | None]] = {}
        intervals = self.intervals

        class Predictor(answer.Predictor):
            def times(self, assignments: Mapping[str, str], replicas: int = 1, edge: int | None = None) -> Times:
                if edge is not None:
                    return super().times(assignments, replicas, edge)
                if not intervals or replicas > 1:
                    found = super().times(assignments, replicas)
                    predictions[repr(sorted(assignments.items()))] = _figures(found), None
                    return found
                whole = self.predict(assignments)
                predictions[repr(sorted(assignments.items()))] = whole.figures, whole
                return request_times(whole.steps, whole.arrived)

        def predicts(read: Recording) -> answer.Predictor:
            return Predictor.of(read, situation.in_flight, replayed=replay_vllm, changed=change_vllm_settings)

        began = time.process_time()
        told = explain_result(self.folder, predicts=predicts)
        sentences, tried = told.sentences(), list(told.tried)
        explain_s = time.process_time() - began
        settings = told.told.recordings[0].settings
        advice = {}
        for metric, (finding, *_) in told.found.items():
            members = self._members(told, finding.group.requests)
            advice[metric] = self._advice(metric, told, members)
        rows = []
        for one in tried if len(situation.loads) == 1 else ():  # a prediction's figures are of one rank
            true = self._run(_arguments(settings, one.change))
            likeliest, predicted = predictions[repr(sorted(labs_names(settings, one.change).items()))]
            for figure in FIGURES:
                metric, p, _ = figure.split("_")
                truth = float(np.percentile([*_times(true, metric.upper()).values()], int(p[1:])))
                row = {"set": _words(_arguments(settings, one.change)), "figure": figure, "true": truth}
                row["predicted"] = likeliest[figure]
                if predicted:
                    low, high = predicted.low[figure], predicted.high[figure]
                    row |= {"low": low, "high": high, "inside": low <= truth <= high}
                    row["marked"] = predicted.extrapolated.steps
                rows.append(row)
        return {
            "name": self.name,
            "report": situation.report,
            "sentences": sentences,
            "cause": self._cause(told, sentences),
            "first": self._first(told),
            "advice": advice,
            "predictions": rows,
            "explain_s": explain_s,
            "steps": sum(run.steps for run in self._run({})),
        }

    # -- the cause ----------------------------------------------------------------------------------------------------

    def _first(self, told: Any) -> str:
        if told.told.lost_first:
            return "lost"
        finding = told.found["TTFT"][0]
        behind = f" behind {finding.behind.title}" if finding.is_victim else ""
        return f"{finding.group.title}{behind}: {finding.part}"

    def _cause(self, told: Any, sentences: Sequence[str]) -> bool:
        """Whether the first sentence is about the true cause and the true victims."""
        situation, finding = self.situation, told.found["TTFT"][0]
        if situation.lost:
            return bool(told.told.lost_first)
        if told.told.lost_first:
            return False
        if situation.prefixes and not any(situation.prefixes in sentence for sentence in sentences[:4]):
            return False
        about = finding.group.title if finding.is_victim else (finding.alone.title if finding.alone else "all")
        if situation.victims and about != situation.victims:
            return False
        if situation.behind and not (finding.is_victim and finding.behind.title == situation.behind):
            return False
        return finding.part in situation.causes

    # -- the advice ---------------------------------------------------------------------------------------------------

    def _members(self, told: Any, requests: Sequence[Any]) -> list[tuple[int, str]]:
        """The rank and the name of each request of a group."""
        return [(int(request.engine or 0), request.arrival.id or request.name) for request in requests]

    def _advice(self, metric: str, told: Any, members: Sequence[tuple[int, str]]) -> dict[str, Any]:
        settings, named = told.told.recordings[0].settings, told.advice[metric]
        before = self._p99({}, metric, members)
        every = {_words(arguments): arguments for arguments in self._choices(told)}
        truths = {words: self._p99(arguments, metric, members) for words, arguments in every.items()}
        taken = {key for other, one in told.advice.items() if other != metric for key in one.change}
        free = [words for words in truths if not taken & {*_labs(settings, every[words])}]
        best = sorted(free, key=lambda words: truths[words])
        found = {"before": before, "best": {words: truths[words] for words in best[:3]}, "named": None, "true": None}
        if named.change:
            arguments = _arguments(settings, named.change)
            true = self._p99(arguments, metric, members)
            second = truths[best[min(1, len(best) - 1)]] if best else true
            right = true <= max(second, AS_GOOD * truths[best[0]] if best else true) * 1.001 and true < before
            return {**found, "named": _words(arguments), "true": true, "right": right, "worse": true > WORSE * before}
        missed = bool(best) and truths[best[0]] < WORTH * before
        return {**found, "right": not missed, "worse": False}

    def _choices(self, told: Any) -> Iterator[Arguments]:
        """Every setting that is really run: what was tried, and what an operator might try."""
        settings = told.told.recordings[0].settings
        yield from (_arguments(settings, one.change) for one in told.tried)
        own = {**DEFAULT, **self.situation.arguments}
        slots, tokens = own["max_num_seqs"], own["max_num_batched_tokens"]
        for times in (2, 4, 0.5, 0.25):
            if slots * times <= min(tokens, 1024):
                yield {"max_num_seqs": int(slots * times)}
            if tokens * times >= slots and tokens * times <= 32_768 and own.get("enable_chunked_prefill", True):
                yield {"max_num_batched_tokens": int(tokens * times)}
        if own.get("enable_chunked_prefill", True):
            for part in (4, 8):
                yield {"long_prefill_token_threshold": tokens // part}
            if own.get("long_prefill_token_threshold"):
                yield {"long_prefill_token_threshold": 0}
        else:
            yield {"enable_chunked_prefill": True}
        if own.get("watermark"):
            yield {"watermark": 0.0}

    # -- the truth ----------------------------------------------------------------------------------------------------

    def _run(self, arguments: Arguments) -> list[Run]:
        """The same loads, each really run under other settings."""
        words = _words(arguments)
        if words not in self._runs:
            situation = self.situation
            own = {**situation.arguments, **arguments}
            self._runs[words] = [
                serve(load, own, situation.device, None, situation.in_flight, rank, TRUE)
                for rank, load in enumerate(situation.loads)
            ]
        return self._runs[words]

    def _p99(self, arguments: Arguments, metric: str, members: Sequence[tuple[int, str]]) -> float:
        times = _times(self._run(arguments), metric)
        return float(np.percentile([times[one] for one in members if one in times], 99))


def _figures(times: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    found = {}
    for figure in FIGURES:
        metric, p, _ = figure.split("_")
        found[figure] = float(np.percentile([*times[metric.upper()].values()], int(p[1:])))
    return found


def _times(runs: Sequence[Run], metric: str) -> dict[tuple[int, str], float]:
    return {(rank, name): ms for rank, run in enumerate(runs) for name, ms in run.times(metric).items()}


def _arguments(settings: Any, change: Mapping[str, str]) -> dict[str, Any]:
    """A change as arguments of `vllm.EngineArgs`."""
    from labsched.replay.vllm_arguments import labs_names, their_names

    known = {"true": True, "false": False}
    found: dict[str, Any] = {}
    if "kv_cache_dtype" in change:  # what matters of it here is how many blocks there are
        change = labs_names(settings, change)
    for name, value in their_names(settings, change).items():
        word = value.lower()
        found[name] = known[word] if word in known else int(word) if word.isdigit() else _number(word)
    return found


def _number(word: str) -> Any:
    try:
        return float(word)
    except ValueError:
        return word


def _labs(settings: Any, arguments: Arguments) -> dict[str, str]:
    from labsched.replay.vllm_arguments import labs_names

    return labs_names(settings, {name: str(value).lower() for name, value in arguments.items()})


def _words(arguments: Arguments) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(arguments.items())) or "as recorded"


# -- tables -----------------------------------------------------------------------------------------------------------

HEADER = ("situation", "first sentence", "", "TTFT: named", "p99 before, after", "", "TPOT: named", "p99", "", "best")


def _row(found: Mapping[str, Any]) -> tuple[str, ...]:
    cells = [found["name"], found["first"], "right" if found["cause"] else "WRONG"]
    best = ""
    for metric in METRICS:
        if metric not in found["advice"]:
            cells += ["", "", ""]
            continue
        advice = found["advice"][metric]
        after = f" to {advice['true']:,.0f}" if advice["true"] is not None else ""
        verdict = "WORSE" if advice["worse"] else "right" if advice["right"] else "WRONG"
        cells += [advice["named"] or "nothing", f"{advice['before']:,.1f}{after}", verdict]
        if not advice["right"]:
            best += "; ".join(f"{words}: {ms:,.0f}" for words, ms in advice["best"].items()) + " "
    return (*cells, best)


def _errors(judged: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """For each setting: how far its predictions are off."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for found in judged:
        for row in found["predictions"]:
            kinds.setdefault(row["set"].partition("=")[0], []).append(row)
    rows: list[tuple[str, ...]] = []
    for kind, some in kinds.items():
        errors = sorted(abs(row["predicted"] / row["true"] - 1) for row in some)
        near = sum(error <= NEAR for error in errors)
        known = [row["inside"] for row in some if "inside" in row]
        inside = f"{sum(known) / len(known):.0%}" if known else "-"
        rows.append(
            (
                kind,
                f"{len(some)}",
                f"{median(errors):.1%}",
                f"{errors[int(0.9 * len(errors))]:.1%}",
                f"{near / len(some):.0%}",
                inside,
            )
        )
    return rows, (
        "prediction of",
        "figures",
        "median error",
        "9 of 10 within",
        f"within {NEAR:.0%}",
        "truth inside the interval",
    )


def _summary(judged: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    count = Counter[str]()
    for found in judged:
        count["causes"] += found["cause"]
        for advice in found["advice"].values():
            count["advice"] += 1
            count["right"] += advice["right"]
            count["worse"] += advice["worse"]
        for row in found["predictions"]:
            count["predictions"] += 1
            count["near"] += abs(row["predicted"] / row["true"] - 1) <= NEAR
            count["asked"] += "inside" in row
            count["inside"] += row.get("inside", False)
    return [
        ("causes and victims", f"{count['causes']} of {len(judged)}"),
        ("advice", f"{count['right']} of {count['advice']}"),
        ("advice that makes it worse", f"{count['worse']}"),
        (f"predictions within {NEAR:.0%}", f"{count['near']} of {count['predictions']}"),
        ("truth inside the interval", f"{count['inside']} of {count['asked']}"),
    ]
