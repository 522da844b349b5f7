"""Known mistakes of rows of tables, and of what positions and distances give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.bounds.positions import distance_buckets, gathered_bias, relative_distances, slope_powers
from conformance.cases.arguments import gradient_name
from conformance.cases.axes import OFFSET
from conformance.cases.case import Case
from conformance.cases.facts.positions import bias_sizes
from conformance.diagnosis import lookups
from conformance.diagnosis.matching import Failing, Mistake, computed, instead, resulting
from conformance.diagnosis.options import options
from conformance.diagnosis.row_sums import RowSum
from conformance.oracle.reference import oracle
from conformance.runner.shrinking import Change


def moved_by(by: int) -> Change:
    """From another position on; None where that is outside the table."""

    def change(case: Case) -> Case | None:
        offset = (case.options.get(OFFSET) or 0) + by
        inside = 0 <= offset <= len(case.inputs["table"]) - case.options["length"]
        return replace(case, options=case.options | {OFFSET: offset}) if inside else None

    return change


def sinusoidal_columns(name: str, order: Callable[[int], np.ndarray]) -> Mistake:
    """The right columns in another order; `order` gets the width."""
    return computed(name, lambda case: oracle(case)["output"].high[:, order(case.options["width"])])


def halves(width: int) -> np.ndarray:
    return np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])


def swapped_columns(width: int) -> np.ndarray:
    return np.minimum(np.arange(width) ^ 1, width - 1)


def from_one(case: Case) -> Case | None:
    return options(offset=case.options.get("offset", 0) + 1)(case)


def with_slopes(name: str, output: Callable[[np.ndarray, np.ndarray], Any]) -> Mistake:
    """The output from slopes [H, 1, 1] and distances [Q, K]."""

    def formula(case: Case) -> Any:
        step, power = slope_powers(case.options["num_heads"])
        _, Q, K = bias_sizes(case)
        distance = np.arange(K) - (np.arange(Q) + (case.options.get(OFFSET) or 0))[:, None]
        return output((2.0 ** (-step * power))[:, None, None], distance)[None]

    return computed(name, formula)


def in_a_row(slopes: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """2^(-8h / H) whatever H is."""
    H = len(slopes)
    return 2.0 ** (-8 * np.arange(1, H + 1) / H)[:, None, None] * distance


def by_buckets(name: str, change: Callable[[Case], np.ndarray | None]) -> Mistake:
    """Other buckets; none where the change has no place."""

    def results(failing: Failing) -> dict[str, Any] | None:
        case, bucket = failing.case, change(failing.case)
        if bucket is None:
            return None
        table = case.inputs["table"].astype(float)
        found, gradient = {"output": gathered_bias(table, bucket)}, np.zeros_like(table)
        if case.cotangents:
            np.add.at(gradient, bucket, np.moveaxis(failing.bar[0], 0, -1))
            found[gradient_name("table")] = gradient
        return found

    return resulting(name, results)


def pairs_of(failing: Failing) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the table that are read for every query and key, and the cotangents of what is read."""
    bar = np.moveaxis(failing.bar[0], 0, -1)
    return distance_buckets(failing.case, relative_distances(failing.case)).ravel(), bar.reshape(-1, bar.shape[-1])


def measured_bias(failing: Failing, name: str) -> Iterator[Mistake]:
    return lookups.added_up_in_16_bits(failing, *pairs_of(failing)) if name == lookups.NAME else iter(())


def swapped_halves(case: Case) -> np.ndarray | None:
    """Keys before the query have the second half."""
    size, found = len(case.inputs["table"]) // 2, distance_buckets(case, relative_distances(case))
    return np.where(found < size, found + size, found - size) if case.options["bidirectional"] else None


def logarithms(case: Case, dtype: type[Any]) -> np.ndarray:
    rows, both, relative = len(case.inputs["table"]), case.options["bidirectional"], relative_distances(case)
    size, furthest = rows // 2 if both else rows, case.options.get("furthest", 128)
    e, n = size // 2, np.abs(relative) if both else np.maximum(-relative, 0)
    ratio = np.log(np.maximum(n, 1).astype(dtype) / dtype(e)) / dtype(math.log(furthest / e))
    late = np.minimum(e + (ratio * dtype(size - e)).astype(int), size - 1)
    return np.where(n < e, n, late) + size * (relative > 0) * both


def with_first_head(case: Case) -> Case | None:
    table = case.inputs["table"]
    return replace(case, inputs=case.inputs | {"table": np.repeat(table[:, :1], table.shape[1], axis=1)})


def bias_sums(failing: Failing) -> dict[str, RowSum]:
    return lookups.table_sums(failing, *pairs_of(failing))


EMBEDDING = (
    *lookups.MISTAKES,
    instead("rows are multiplied by sqrt(E) though not asked", options(scaled=True)),
    instead("rows are not multiplied by sqrt(E)", options(scaled=False)),
)


LEARNED = (
    instead("the offset is ignored", options(offset=0)),
    *(
        instead(f"rows are read from one position too {name}", moved_by(by))
        for name, by in (("early", -1), ("late", 1))
    ),
)


SINUSOIDAL = (
    sinusoidal_columns("all sines come first, then all cosines", halves),
    sinusoidal_columns("sine and cosine are swapped", swapped_columns),
    instead("the offset is ignored", options(offset=0)),
    instead("the other exponent is used (doubled)", options(exponent="doubled")),
    instead("the other exponent is used (shared)", options(exponent="shared")),
    instead("positions count from 1", from_one),
)


ALIBI = (
    instead("the offset is ignored", options(offset=0)),
    with_slopes("the bias grows with the distance", lambda slopes, distance: -slopes * distance),
    with_slopes("the bias falls on both sides of the query", lambda slopes, distance: -slopes * np.abs(distance)),
    with_slopes("keys after the query have 0", lambda slopes, distance: slopes * np.minimum(distance, 0)),
    with_slopes("the slopes are 2^(-8h / H) for a number of heads that is no power of two", in_a_row),
    with_slopes("slopes begin with 1", lambda slopes, distance: slopes / slopes[0] * distance),
    with_slopes("slopes are in the opposite order", lambda slopes, distance: slopes[::-1] * distance),
    with_slopes("distances count from 1", lambda slopes, distance: slopes * (distance - 1)),
    with_slopes("the bias is that of the first query for all", lambda slopes, d: slopes * d[:1] + 0 * d),
    with_slopes("slope * j, which a softmax takes for the same", lambda slopes, d: slopes * (d - d[:, :1]) + 0 * d),
    with_slopes(
        "slopes are rounded to bfloat16",
        lambda slopes, distance: slopes.astype(ml_dtypes.bfloat16).astype(float) * distance,
    ),
)


RELATIVE = (
    instead("the offset is ignored", options(offset=0)),
    instead("the furthest distance is 128, whatever is asked", options(furthest=128)),
    instead("keys after the query share one bucket", options(bidirectional=False)),
    instead("keys after the query have buckets of their own", options(bidirectional=True)),
    instead("every head has the first one's bias", with_first_head),
    by_buckets("the two halves of the table are swapped", swapped_halves),
    by_buckets("the distance has the opposite sign", lambda case: distance_buckets(case, -relative_distances(case))),
    by_buckets("distances count from 1", lambda case: distance_buckets(case, relative_distances(case) - 1)),
    by_buckets("buckets come from float32 logarithms", lambda case: logarithms(case, np.float32)),
    by_buckets("buckets come from float64 logarithms", lambda case: logarithms(case, np.float64)),
)
