"""Prometheus histograms: observations counted by their upper bound, as a model of ours shows them on /metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Histogram:
    """``buckets`` holds, by upper bound, how many observations were at most that; the last bound is infinite."""

    count: float = 0.0
    sum: float = 0.0
    buckets: Mapping[float, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Where that share of the observations is reached, linear within a bucket (as ``histogram_quantile``).

        Beyond the last finite bound nothing is known: then it is that bound. Without observations it is NaN.
        """
        rank, below, counted = share * self.count, 0.0, 0.0
        for bound, count in sorted(self.buckets.items()):
            if count >= rank and count > counted:
                return below if math.isinf(bound) else below + (bound - below) * (rank - counted) / (count - counted)
            below, counted = bound, count
        return math.nan

    def plus(self, other: Histogram) -> Histogram:
        """The observations of both; they have the same bounds, or one has seen nothing."""
        bounds = {*self.buckets, *other.buckets}
        buckets = {bound: self.buckets.get(bound, 0.0) + other.buckets.get(bound, 0.0) for bound in bounds}
        return Histogram(self.count + other.count, self.sum + other.sum, buckets)

    def since(self, earlier: Histogram) -> Histogram:
        """The observations between the two."""
        buckets = {bound: count - earlier.buckets.get(bound, 0.0) for bound, count in self.buckets.items()}
        return Histogram(self.count - earlier.count, self.sum - earlier.sum, buckets)
