"""Recorded series, and what a selector finds in them: the semantics of Prometheus 3.

https://prometheus.io/docs/prometheus/latest/querying/basics/ has the rules of lookback, staleness and range vectors.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import promql_parser as ast

NAME = "__name__"
LOOKBACK_S = 300.0  # an instant selector finds no sample that is older
Labels = tuple[tuple[str, str], ...]  # sorted by name
Vector = dict[Labels, float]


@dataclass(frozen=True)
class Series:
    """The samples of one series, in order of time. ``values``: None is a staleness marker, which ends the series."""

    times: list[float] = field(default_factory=list)  # seconds
    values: list[float | None] = field(default_factory=list)

    def add(self, time: float, value: float | None) -> None:
        self.times.append(time)
        self.values.append(value)


class Recording:
    """Samples as Prometheus stores them, by their series' labels."""

    def __init__(self) -> None:
        self.series: dict[Labels, Series] = {}

    def add(self, name: str, labels: Mapping[str, str], time: float, value: float | None) -> None:
        """One scraped sample; ``time`` in seconds, later than the one before. None: the series is gone."""
        self.series.setdefault(as_labels({NAME: name, **labels}), Series()).add(time, value)

    @property
    def names(self) -> set[str]:
        """The names of all metrics."""
        return {dict(labels)[NAME] for labels in self.series}

    def instant(self, selector: ast.VectorSelector, now: float) -> Vector:
        """The newest sample of each series, if it is not older than the lookback and no staleness marker."""
        found: Vector = {}
        for labels, series in self._selected(selector):
            at = bisect_right(series.times, now) - 1
            if at >= 0 and series.times[at] > now - LOOKBACK_S and (value := series.values[at]) is not None:
                found[labels] = value
        return found

    def ranges(self, selector: ast.MatrixSelector, now: float) -> Iterator[tuple[Labels, list[tuple[float, float]]]]:
        """Each series' samples (time, value) after ``now`` minus the range, up to ``now``.

        Prometheus 2 also took a sample that lies exactly at the beginning.
        """
        begin = now - selector.range.total_seconds()
        for labels, series in self._selected(selector.vector_selector):
            first, after = bisect_right(series.times, begin), bisect_right(series.times, now)
            pairs = zip(series.times[first:after], series.values[first:after], strict=True)
            if samples := [(time, value) for time, value in pairs if value is not None]:
                yield labels, samples

    def _selected(self, selector: ast.VectorSelector) -> Iterator[tuple[Labels, Series]]:
        for labels, series in self.series.items():
            known = dict(labels)
            if selector.name in (None, known[NAME]) and all(_matches(one, known) for one in selector.matchers.matchers):
                yield labels, series


def as_labels(labels: Mapping[str, str]) -> Labels:
    """Labels as a key. A label without a value is the same as none."""
    return tuple(sorted((name, value) for name, value in labels.items() if value))


def without(labels: Labels, names: Iterable[str]) -> Labels:
    left_out = {*names}
    return tuple(pair for pair in labels if pair[0] not in left_out)


def only(labels: Labels, names: Iterable[str]) -> Labels:
    kept = {*names}
    return tuple(pair for pair in labels if pair[0] in kept)


def _matches(matcher: ast.Matcher, labels: Mapping[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    if matcher.op in (ast.MatchOp.Equal, ast.MatchOp.NotEqual):
        return (value == matcher.value) is (matcher.op == ast.MatchOp.Equal)
    return bool(re.fullmatch(matcher.value, value)) is (matcher.op == ast.MatchOp.Re)
