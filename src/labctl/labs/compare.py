"""Results of one lab side by side: which settings differ, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.evidence import results
from labsched.replay import recording
from labsched.replay.figures import figures
from labsched.vllm import reader

EQUAL_LENGTHS = (
    "all answers have one length, so a whole batch begins and ends together, and no request waits for a longer one; "
    "scheduling for each token pays with answers of different lengths and arrivals at random (--request-rate)"
)
SHOWN = 16  # rows that matter
# What people look at first, by the end of a metric's path.
HEADLINES = (
    "output_token_throughput",
    "request_throughput",
    "goodput",
    "requests_per_second",
    *(
        f"{name}.p{percent}"
        for name in ("time_to_first_token", "time_per_output_token", "inter_token_latency")
        for percent in (50, 95, 99)
    ),
    "request_latency.p50",
    "request_latency.p99",
    "mean_batch",
)


@dataclass(frozen=True)
class Comparison:
    """The comparison of several results.

    Attributes:
        judged: the metrics that the lab's verdicts are about.
        names: the compared results' folders or files.
        skipped: the results that were not compared, and why, in words.
        settings: the settings that differ: by name, the value in each result.
        metrics: by dotted path, the value in each result.
        remarks: sentences about what may be surprising.
    """

    judged: Collection[str]
    names: Sequence[str]
    skipped: Sequence[str]
    settings: Mapping[str, Sequence[str]]
    metrics: Mapping[str, Sequence[float]]
    remarks: Sequence[str] = ()

    def headlines(self) -> list[str]:
        """The ``SHOWN`` metrics that matter most: those of verdicts, then what people look at first."""
        judged = [key for key in self.metrics if key in self.judged]
        # Triton counts its own executions: what a scheduler of the model's counts is the batch.
        doubled = {
            key
            for key in self.metrics
            if "triton.mean" in key and key.replace("triton.mean", "scheduler.mean") in self.metrics
        }
        ends = [key for end in HEADLINES for key in self.metrics if key.endswith(end) and key not in doubled]
        usual = [key for key in ends if key not in judged]
        rest = [key for key in self.metrics if key not in (*judged, *usual, *doubled)]
        return [*judged, *usual, *rest][:SHOWN]


def compare(paths: Sequence[Path]) -> Comparison:
    """Compare results, by their folders or files; what has no result is skipped, and so are runs beside benches.

    Raises:
        LabError: fewer than two results are left, they are of different labs, or have no metric in common.
    """
    documents: dict[str, dict[str, Any]] = {}
    skipped = []
    for path, name in zip(paths, _names(paths), strict=True):
        if name in documents:
            skipped.append(f"{name}: it is named twice")
        elif reader.is_recording(path):
            documents[name] = _recorded(path)
        elif path.is_dir() and not (path / results.FILE).is_file():
            skipped.append(f"{name}: it has no result.json (the run did not end, or is still going on)")
        else:
            documents[name] = results.load_result(path)
    labs = {document["lab"] for document in documents.values()}
    if len(labs) > 1:
        raise LabError(
            "results of different labs cannot be compared", ", ".join(sorted(labs)), code="compare-other-labs"
        )
    kinds = Counter(_kind(document) for document in documents.values())
    kept = max(kinds, key=lambda kind: kinds[kind]) if kinds else ""
    for name, document in list(documents.items()):
        if _kind(document) != kept:
            skipped.append(f"{name}: it is from a {_kind(document)}, not from a {kept}")
            del documents[name]
    if len(documents) < 2:
        raise LabError(
            "fewer than two results can be compared",
            "; ".join(skipped),
            "labctl run or labctl bench again",
            code="compare-too-few",
        )
    flat = [results.flatten(document["metrics"]) for document in documents.values()]
    common = [key for key in flat[0] if all(_is_number(f.get(key)) for f in flat)]
    if not common:
        raise LabError("these results have no metric in common", code="compare-nothing-common")
    metrics = {key: [float(f[key]) for f in flat] for key in common}
    remarks = _remarks(list(documents.values()), metrics)
    judged = {verdict["metric"] for document in documents.values() for verdict in document.get("verdicts", ())}
    return Comparison(judged, [*documents], skipped, _differing(list(documents.values())), metrics, remarks)


def _recorded(path: Path) -> dict[str, Any]:
    """A recording of a learner's own vLLM as a result. Raises LabError: it has no recording."""
    recorded = recording.read_recording(path)
    values = figures(recorded.steps, {arrival.name: arrival.at for arrival in recorded.arrivals})
    long = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency"}
    long |= {"tokens_per_s": "output_token_throughput", "requests_per_s": "request_throughput"}

    def long_name(name: str) -> str:
        """`ttft_p50_ms` is what a bench calls `time_to_first_token.p50`."""
        metric, _, rest = name.partition("_")
        return f"{long[metric]}.{rest.removesuffix('_ms')}" if metric in long else long.get(name, name)

    metrics = {long_name(name): value for name, value in values.items()}
    others = recording.others_in_words(recording.other_recordings(path, [recorded]))
    settings = dict(recorded.settings.recorded)
    return {
        "lab": "vLLM",
        "settings": settings,
        "metrics": metrics,
        "of": f"{path}: {recorded.name}. {others}" * bool(others),
    }


def _remarks(documents: Sequence[Mapping[str, Any]], metrics: Mapping[str, Sequence[float]]) -> list[str]:
    """Remarks on surprises: goodput within different limits, or whole batches that beat scheduling for each token."""
    kinds = [document["settings"].get("scheduling") for document in documents]
    models = [document["settings"].get("bench_model") for document in documents]
    closed = [rates for key, rates in metrics.items() if key.endswith("in flight.output_token_throughput")]
    wins = [
        (models[whole], models[by_token])
        for rates in closed
        for whole, kind in enumerate(kinds)
        for by_token, other in enumerate(kinds)
        if (kind, other) == ("dynamic", "iterative") and rates[whole] > rates[by_token]
    ]
    limits = dict.fromkeys(str(document["settings"].get("slo", "none")) for document in documents)
    differ = len(limits) > 1 and any(key.endswith(".goodput") for key in metrics)
    remarks = [document["of"] for document in documents if document.get("of")]
    if differ:
        remarks.append(f"goodput counts requests within different limits: {' and '.join(limits)}")
    for winner, loser in dict.fromkeys(wins):
        remarks.append(f"{winner} makes more tokens/s than {loser}: {EQUAL_LENGTHS}")
    return remarks


def _names(paths: Sequence[Path]) -> list[str]:
    """A short name of each: its folder's, or its own where it is another file; the path where two have one name."""
    resolved = [path.resolve() for path in paths]
    folders = [path.parent if path.name == results.FILE else path for path in resolved]
    short = [path.stem if path.is_file() else path.name for path in folders]
    places: dict[str, set[Path]] = {}
    for name, path in zip(short, folders, strict=True):
        places.setdefault(name, set()).add(path)
    return [name if len(places[name]) == 1 else str(path) for name, path in zip(short, paths, strict=True)]


def _kind(document: Mapping[str, Any]) -> str:
    return "bench" if "bench_model" in document["settings"] else "run"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _differing(documents: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Differing settings, runtimes and lengths of run (``quick``): by name, each result's value."""
    how = {key: [str(document.get(key, "unknown")) for document in documents] for key in ("runtime", "quick")}
    keys = dict.fromkeys(key for document in documents for key in document["settings"])
    values = how | {key: [str(document["settings"].get(key, "-")) for document in documents] for key in keys}
    return {key: shown for key, shown in values.items() if len(set(shown)) > 1}
