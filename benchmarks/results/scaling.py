"""How time and memory grow with the length T, fitted to a series of cases that differ in nothing else.

quantity ~ T^a by least squares of the logarithms, over the lengths from FROM on if there are three of them. Beside a
stands the range of the same between neighbouring lengths: where that is wide, one power does not tell the story.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

FROM = 512
"""Below, starting and fixed costs count more than the length does."""
LEAST_MEMORY = 2**20
"""Bytes below which a peak is mostly chance."""
SENTENCE = {"seconds": "time", "memory": "memory"}


def fit(points: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    """Of (T, quantity); None for fewer than two."""
    points = sorted(points)
    long = [point for point in points if point[0] >= FROM]
    points = long if len(long) >= 3 else points
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points, float)).T
    exponent, intercept = np.polyfit(x, y, 1)
    between = np.diff(y) / np.diff(x)
    return {
        "exponent": float(exponent),
        "factor": float(math.exp(intercept)),
        "least": float(between.min()),
        "most": float(between.max()),
        "from": int(points[0][0]),
        "to": int(points[-1][0]),
        "points": len(points),
    }


def series_of(cases: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str, list[tuple[float, float]]]]:
    """(series, subject, quantity, points) of a result."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for case in cases:
        for subject in case["subjects"]:
            if case["series"] and subject["status"] == "measured":
                key = (case["series"], subject["name"])
                found.setdefault((*key, "seconds"), []).append((case["K"], subject["seconds"]["median"]))
                if subject["memory"] is not None and subject["memory"] >= LEAST_MEMORY:
                    found.setdefault((*key, "memory"), []).append((case["K"], subject["memory"]))
    for (series, subject, quantity), points in found.items():
        yield series, subject, quantity, points


def scaling(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One fit for each series, subject and quantity that has enough lengths."""
    fits = []
    for series, subject, quantity, points in series_of(cases):
        fitted = fit(points)
        if fitted is not None:
            fits.append({"series": series, "subject": subject, "quantity": quantity} | fitted)
    return fits


# --- in words ---------------------------------------------------------------------------------------------------------


def in_words(fits: Sequence[dict[str, Any]], cases: Sequence[dict[str, Any]], memory: int | None) -> list[str]:
    """Sentences: how each subject grows, where this device ends for it, and what then."""
    lines: list[str] = []
    by_key = {(one["series"], one["subject"], one["quantity"]): one for one in fits}
    for series, subject, quantity in by_key:
        if quantity == "seconds":
            time, space = by_key[series, subject, "seconds"], by_key.get((series, subject, "memory"))
            growth = [grows(one) for one in (time, space) if one is not None]
            line = f"{series}: {subject}: {', '.join(growth)}, T={time['from']} to {time['to']}"
            # Two lengths give a line whatever is the case.
            enough = space is not None and space["points"] > 2 and memory is not None
            end = ends(space, time, cases, series, memory) if enough else ""  # type: ignore[arg-type]
            lines.append(f"{line}{'. ' + end if end else ''}")
    return lines


def grows(one: dict[str, Any]) -> str:
    between = f" ({one['least']:.2f} to {one['most']:.2f} between neighbours)" if one["points"] > 2 else ""
    return f"{SENTENCE[one['quantity']]} grows as T^{one['exponent']:.2f}{between}"


def ends(space: dict[str, Any], time: dict[str, Any], cases: Any, series: str, memory: int) -> str:
    """The length at which inputs and this call fill the device."""
    case = next(case for case in cases if case["series"] == series)
    per_token = case["input_bytes"] / case["K"]

    def filled(length: float) -> bool:
        return per_token * length + space["factor"] * length ** space["exponent"] > memory

    length = 2.0
    while not filled(length) and length < 2**60:
        length *= 2
    low, high = length / 2, length
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if filled(middle) else (middle, high)
    seconds = time["factor"] * low ** time["exponent"]
    return f"It would fill {memory / 1e9:.0f} GB at T={round_down(low):,}, where one call takes {duration(seconds)}"


def round_down(number: float) -> int:
    """To two digits."""
    unit = 10 ** max(0, int(math.log10(number)) - 1)
    return int(number // unit * unit)


def duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.2g} seconds"


WHAT_THEN = (
    "Where one device ends, keys and values are divided among several. Each gives attention over its own part, and the "
    "log-sum-exp of every row; merge_attention makes the whole of these, exactly (ATT-14), and moves V + 1 numbers for "
    "each query and head of every part."
)
