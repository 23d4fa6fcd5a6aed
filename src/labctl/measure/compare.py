"""Results of one lab side by side: which settings differ, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.errors import LabError
from labctl.measure import results

SHOWN = 10  # rows that matter
# What people look at first, by the end of a metric's path.
HEADLINES = (
    "output_token_throughput", "request_throughput", "requests_per_second", "time_to_first_token.p50",
    "inter_token_latency.p50", "request_latency.p50", "request_latency.p99", "mean_batch",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """What can be compared of some results.

    Attributes:
        lab: the folder of the lab that they are of.
        names: of the results that are compared, by their folders.
        skipped: which were not, and why, in words.
        settings: those that differ: by name, the value in each result.
        metrics: by dotted path, the value in each result.
    """

    lab: str
    names: Sequence[str]
    skipped: Sequence[str]
    settings: Mapping[str, Sequence[str]]
    metrics: Mapping[str, Sequence[float]]

    def headlines(self, first: Collection[str] = ()) -> list[str]:
        """The ``SHOWN`` metrics that matter most: those of ``first``, then what people look at first."""
        judged = [key for key in self.metrics if key in first]
        usual = [key for end in HEADLINES for key in self.metrics if key.endswith(end) and key not in judged]
        rest = [key for key in self.metrics if key not in judged and key not in usual]
        return [*judged, *usual, *rest][:SHOWN]


def compare(paths: Sequence[Path]) -> Comparison:
    """Compare results, by their folders or files; what has no result is skipped, and so are runs beside benches.

    Raises:
        LabError: fewer than two results are left, they are of different labs, or have no metric in common.
    """
    documents: dict[str, dict[str, Any]] = {}
    skipped = []
    for path in paths:
        name = path.resolve().parent.name if path.is_file() else path.resolve().name
        if path.is_dir() and not (path / "result.json").is_file():
            skipped.append(f"{name}: it has no result.json (the run did not end, or is still going on)")
        else:
            documents[name] = results.load(path)
    labs = {document["lab"] for document in documents.values()}
    if len(labs) > 1:
        raise LabError("results of different labs cannot be compared", ", ".join(sorted(labs)))
    kinds = Counter(_kind(document) for document in documents.values())
    kept = max(kinds, key=lambda kind: kinds[kind]) if kinds else ""
    skipped += [
        f"{name}: it is from a {_kind(d)}, not from a {kept}" for name, d in documents.items() if _kind(d) != kept
    ]
    documents = {name: document for name, document in documents.items() if _kind(document) == kept}
    if len(documents) < 2:
        raise LabError("fewer than two results can be compared", "; ".join(skipped), "labctl run or labctl bench again")
    flat = [results.flatten(document["metrics"]) for document in documents.values()]
    common = [key for key in flat[0] if all(_is_number(f.get(key)) for f in flat)]
    if not common:
        raise LabError("these results have no metric in common")
    metrics = {key: [float(f[key]) for f in flat] for key in common}
    return Comparison(labs.pop(), [*documents], skipped, _differing(list(documents.values())), metrics)


def _kind(document: Mapping[str, Any]) -> str:
    return "bench" if "bench_model" in document["settings"] else "run"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _differing(documents: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    keys = dict.fromkeys(key for document in documents for key in document["settings"])
    values = {key: [str(document["settings"].get(key, "-")) for document in documents] for key in keys}
    return {key: shown for key, shown in values.items() if len(set(shown)) > 1}
