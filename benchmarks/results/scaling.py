"""How time and memory grow with the length T, fitted to a series of cases that differ in nothing else.

quantity ~ T^a by least squares of the logarithms, over the lengths from FROM on if there are three of them. So a is a
sum of the medians' logarithms, each times a number that the lengths give. Its confidence interval takes every median to
the end of its own interval that makes a smallest, and largest. It contains the exponent of the true medians if each
interval contains its median. Cases are timed independently, so its level is the product of theirs. The interval says
nothing of what changed on the machine from one case to the next.

Beside a stand the exponents between neighbouring lengths: where they differ, one power does not tell the story.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Result = dict[str, Any]
Point = tuple[int, Result]
"""A length, and the interval of what was measured there."""

FROM = 512
"""Below, starting and fixed costs count more than the length does."""
LEAST_MEMORY = 2**20
"""Bytes below which a peak is mostly chance."""
FIELD = {"seconds": "seconds", "memory": "peaks"}


def exponent(points: Sequence[Point]) -> Result:
    """The least-squares exponent of two points or more, as an interval."""
    lengths = np.log([float(length) for length, _ in points])
    weights = (lengths - lengths.mean()) / ((lengths - lengths.mean()) ** 2).sum()
    median, low, high = (np.log([value[name] for _, value in points]) for name in ("median", "low", "high"))
    up, down = weights.clip(0, None), weights.clip(None, 0)
    return {
        "median": float(weights @ median),
        "low": float(up @ low + down @ high),
        "high": float(up @ high + down @ low),
        "level": math.prod(value["level"] for _, value in points),
    }


def fit(points: Sequence[Point]) -> Result | None:
    """None for fewer than two lengths."""
    points = sorted(points, key=lambda point: point[0])
    long = [point for point in points if point[0] >= FROM]
    points = long if len(long) >= 3 else points
    if len(points) < 2:
        return None
    found = exponent(points)
    between = [exponent(pair) for pair in itertools.pairwise(points)]
    logarithms = [math.log(value["median"]) - found["median"] * math.log(length) for length, value in points]
    return {
        "exponent": found.pop("median"),
        **found,
        "factor": math.exp(float(np.mean(logarithms))),
        "between": between,
        "least": min(one["median"] for one in between),
        "most": max(one["median"] for one in between),
        "from": points[0][0],
        "to": points[-1][0],
        "points": len(points),
    }


def scaling(cases: Sequence[Result]) -> list[Result]:
    """One fit for each series, subject and quantity that has enough lengths.

    A peak that was measured once has no interval, and is no point.
    """
    found: dict[tuple[str, str, str], list[Point]] = {}
    for case in (case for case in cases if case["series"]):
        for subject in case["subjects"]:
            for quantity, field in FIELD.items():
                value = subject.get(field)
                if value is not None and (quantity == "seconds" or value["low"] >= LEAST_MEMORY):
                    found.setdefault((case["series"], subject["name"], quantity), []).append((case["K"], value))
    names = ("series", "subject", "quantity")
    fits = [(dict(zip(names, key, strict=True)), fit(points)) for key, points in found.items()]
    return [key | fitted for key, fitted in fits if fitted is not None]


# --- in words ---------------------------------------------------------------------------------------------------------


def in_words(cases: Sequence[Result], memory: int | None) -> list[str]:
    """Sentences: how each subject grows, and where memory ends for it. memory: of the device, in bytes."""
    by_key = {(one["series"], one["subject"], one["quantity"]): one for one in scaling(cases)}
    lines = []
    for (series, subject, quantity), time in by_key.items():
        if quantity == "seconds":
            space = by_key.get((series, subject, "memory"))
            growth = f"time grows as {power(time)}{steeper(time)}"
            if space is not None:
                growth += f"; memory grows as {power(space)}{steeper(space)}"
            # Two lengths give a line whatever is the case.
            enough = space is not None and space["points"] > 2 and memory is not None
            end = ends(space, cases, memory) if enough else ""  # type: ignore[arg-type]
            levels = min(one["level"] for one in (time, space) if one is not None)
            line = f"{series}, T={time['from']:,} to {time['to']:,}: {subject}: {growth}"
            lines.append(f"{line} (intervals of at least {math.floor(levels * 100)}%){'. ' + end if end else ''}")
    return lines


def power(one: Result) -> str:
    return f"T^{one['exponent']:.2f} [{one['low']:.2f}, {one['high']:.2f}]"


def steeper(one: Result) -> str:
    """How it begins and ends, where that is not the same even by the intervals."""
    first, last = one["between"][0], one["between"][-1]
    if first["low"] <= last["high"] and last["low"] <= first["high"]:
        return ""
    first, last = (power({"exponent": end["median"]} | end) for end in (first, last))
    return f", at first as {first} and at last as {last}"


def ends(space: Result, cases: Sequence[Result], memory: int) -> str:
    """The lengths at which inputs and one call fill the device, by the smallest and largest growth between lengths."""
    longest = next(case for case in cases if (case["series"], case["K"]) == (space["series"], space["to"]))
    peak = next(one["memory"] for one in longest["subjects"] if one["name"] == space["subject"])
    growths = [max(end["high"] for end in space["between"]), max(0.0, min(end["low"] for end in space["between"]))]
    lengths = [full(memory, longest, peak, growth) for growth in growths]
    units = [10 ** max(0, int(math.log10(length)) - 1) for length in lengths]  # of two digits
    low, high = (int(length // unit * unit) for length, unit in zip(lengths, units, strict=True))
    where = f"T={low:,}" if low == high else f"T={low:,} to {high:,}"
    return f"Inputs and one call would fill {memory / 1e9:.0f} GB at {where}"


def full(memory: int, case: Result, peak: float, growth: float) -> float:
    """The length at which `peak` bytes, growing by that power, and the inputs are that many bytes."""

    def filled(length: float) -> bool:
        return case["input_bytes"] * length / case["K"] + peak * (length / case["K"]) ** growth > memory

    low, high = 2.0, 2.0**60
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if filled(middle) else (middle, high)
    return low


WHAT_THEN = (
    "Where one device ends, keys and values are divided among several. Each gives attention over its own part, and the "
    "log-sum-exp of every row; merge_attention makes the whole of these, exactly (ATT-14), and moves V + 1 numbers for "
    "each query and head of every part."
)
