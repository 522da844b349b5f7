"""Medians with intervals that assume nothing about how the times are distributed.

Of n independent values in order, the median of their distribution lies between the k-th smallest and the k-th largest
unless fewer than k of them fall on one side of it: with a probability of 1 - 2 P(Binomial(n, 1/2) < k). The largest k
that keeps the level asked for is taken, and the level that it gives is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

LEVEL = 0.95
LEAST_LEVEL = 0.9
"""Below, an interval has too few values to tell a difference from noise."""


class Interval(NamedTuple):
    """`level` is the probability with which the interval holds the median; below LEVEL only if n is below 6."""

    median: float
    low: float
    high: float
    level: float
    n: int

    def inverse(self, numerator: float) -> Interval:
        return self._replace(median=numerator / self.median, low=numerator / self.high, high=numerator / self.low)


def interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The median of the values, and the narrowest interval of two of them that has the level."""
    ordered, n = sorted(values), len(values)
    if n == 0:
        raise ValueError("no values to take a median of")
    outside, k = 2 * 0.5**n, 1
    while k < n // 2:
        more = outside + 2 * math.comb(n, k) * 0.5**n
        if 1 - more < level:
            break
        outside, k = more, k + 1
    return Interval(median(ordered), ordered[k - 1], ordered[n - k], max(0.0, 1 - outside), n)


def paired(values: Sequence[float | None], base: Sequence[float | None]) -> Interval | None:
    """Of values[i] / base[i], for the rounds that have both; None if there are none."""
    ratios = [a / b for a, b in zip(values, base, strict=False) if a is not None and b is not None]
    return interval(ratios) if ratios else None
