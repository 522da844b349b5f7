"""Relative positions: a bias from a table, by the bucket of the distance between query and key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds.arithmetic import Approx, Precision
from conformance.bounds.operations import gathered_gradient
from conformance.cases.arguments import gradient_name
from conformance.cases.axes import OFFSET, Arrays, Described
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.operation import Operation, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.levels import STRICT
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.diagnosis import lookups
from conformance.diagnosis.matching import Failing, Mistake, instead, resulting
from conformance.diagnosis.options import options
from conformance.operations.common import rows_of_layers
from conformance.oracle.reference import AFFORDABLE
from conformance.sampling.layouts import with_memory
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import KEY_HEADS, LENGTHS, ROWS
from conformance.sampling.strategies import (
    DTYPES,
    Draw,
    cotangent,
    judged,
    seeds,
    some,
    taken,
    wanted,
    without_lacking,
)
from specification.positions import bucket_edges

NAME = "relative_position_bias"
PLAN = Plan(
    values={"heads": KEY_HEADS, "queries": ROWS, "keys": LENGTHS},
    typical={"heads": (3, 32), "queries": (3, 130, 1025), "keys": (5, 129, 65537)},
)
TABLES = ((32, 128), (32, 128), (16, 20), (64, 256), (4, 3), (5, 9), (12, 1000), (33, 128), (40, 2048))
"""Rows of the table, and the furthest distance."""
EDGES = (
    *((9, 128, 8), (10, 160, 10), (19, 288, 18), (20, 320, 20), (29, 448, 28), (8, 100, 20), (5, 16, 8)),
    *((32, 100, 40), (5, 686, 98), (6, 1029, 147), (11, 1715, 245), (15, 9317, 3791), (83, 1000, 796), (99, 784, 426)),
)
"""Buckets of a direction, the furthest distance, and one that float32 or float64 logarithms put into the wrong bucket.

The first five in float64 as log(n / e), the next three as log(n) - log(e), the others in float32.
"""


def work(passes: int, gradients: bool, *, pairs: int) -> int:
    return pairs * (14 if gradients else 8)


def sizes_of(case: Case) -> tuple[int, int, int]:
    return case.inputs["table"].shape[1], case.options["query_length"], case.options["key_length"]


def shape(case: Case, name: str, layout: str) -> Shape:
    return (1, *sizes_of(case))


def dimensions(case: Case) -> dict[str, int]:
    return dict(zip(("heads", "queries", "keys"), sizes_of(case), strict=True))


def axes(case: Case) -> Described:
    """The table keeps its rows, whose number decides the buckets."""
    H, Q, K = sizes_of(case)
    arrays: Arrays = {"table": ((), ("H",)), "-> output": ((), ("H",), ("Q",), ("K",))}
    return {"H": H, "Q": Q, "K": K, OFFSET: case.options.get(OFFSET) or 0}, arrays, {}


@st.composite
def cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    tables: tuple[tuple[int, int], ...] = TABLES,
    hard: bool = False,
    plan: tuple[int, int, int] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """tables: rows and furthest distances. hard: one of `EDGES` instead. plan: heads, queries and keys."""
    limits = declaration.limits
    bidirectional = draw(st.sampled_from(taken(NAME, "bidirectional", (False, True), declaration)))
    if hard:
        size, furthest, distance = draw(st.sampled_from(EDGES))
        rows = 2 * size if bidirectional else size
    else:
        rows, furthest = draw(st.sampled_from(tables))
        if "furthest" in declaration.lacking:
            furthest = 128
        edges = bucket_edges(rows // 2 if bidirectional else rows, furthest)
        distance = draw(st.sampled_from((0, *edges, furthest, 2 * furthest, 4099)))
    H = draw(st.integers(1, min(4, limits.get("heads", 4))))
    Q, K = (draw(st.integers(1, min(most, limits.get(n, most)))) for n, most in (("queries", 9), ("keys", 40)))
    if bidirectional and distance <= 128 and draw(st.booleans()):  # so that a key after the query has the distance
        K = min(K + distance, limits.get("keys", K + distance))
        offset = draw(st.integers(0, K - 1))
    else:  # the first query and one of the keys
        offset = distance + draw(st.integers(0, K - 1))
    if draw(st.integers(0, 3)) == 0 and limits.get("queries", K) >= K:
        Q = K  # as in a model's forward pass
    H, Q, K = (H, Q, K) if plan is None else plan
    cheap = work(3, True, pairs=H * Q * K) <= AFFORDABLE / 8
    dtype = draw(st.sampled_from(some(d for d in judged(dtypes, declaration) if cheap or d != "float64")))
    d = Draw(draw(seeds), dtype)
    given: dict[str, Any] = {"query_length": Q, "key_length": K, "bidirectional": bidirectional, "furthest": furthest}
    given = without_lacking(NAME, given | {OFFSET: offset}, declaration)
    cotangents = wanted({"output": cotangent(draw, d, (1, H, Q, K), 0)}, declaration)
    return with_memory(draw, Case(NAME, dtype, {"table": d.normal(rows, H)}, given, cotangents), declaration)


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return drawn(plan=(row["heads"], row["queries"], row["keys"]))

    return [
        agreement("POS-6", "relative buckets", NAME, drawn(), weight=2.0),
        agreement("POS-6", "edges of buckets where logarithms err", NAME, drawn(hard=True), weight=1.5, level=STRICT),
        agreement("POS-6", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def refused(title: str, error: Kind, rows: int = 8, **changes: Any) -> Refusal:
        given = {"query_length": 3, "key_length": 4, "bidirectional": True} | changes
        return array.refusal("POS-6", title, error, NAME, {"table": array(rows, 2)}, **given)

    yield refused("a table of three buckets for both directions", ValueError, rows=3)
    yield refused("a furthest distance that has a bucket of its own", ValueError, furthest=2)
    yield refused("bidirectional that is no truth value", TypeError, bidirectional=1)


# --- what is right ----------------------------------------------------------------------------------------------------


def distances(case: Case, offset: int | None = None) -> np.ndarray:
    """j - (i + offset)."""
    _, Q, K = sizes_of(case)
    return np.arange(K) - (np.arange(Q) + ((case.options.get(OFFSET) or 0) if offset is None else offset))[:, None]


def buckets(case: Case, relative: np.ndarray) -> np.ndarray:
    rows, both = len(case.inputs["table"]), case.options["bidirectional"]
    size = rows // 2 if both else rows
    edges = bucket_edges(size, case.options.get("furthest", 128))
    n = np.abs(relative) if both else np.maximum(-relative, 0)
    return np.searchsorted(edges, n, side="right") + size * (relative > 0) * both


def bounds(case: Case, p: Precision) -> dict[str, Approx]:
    """Numbers are copied. A row's gradient adds up as many cotangents as pairs are in its bucket."""
    table, bucket = np.asarray(case.inputs["table"], float), buckets(case, distances(case))
    results = {"output": Approx(output_of(table, bucket), np.zeros(shape(case, "output", "")))}
    if case.cotangents:
        bar = np.moveaxis(np.asarray(case.cotangents["output"], float)[0], 0, -1)
        results[gradient_name("table")] = gathered_gradient(table, bucket, bar, p)
    return results


# --- what is known to go wrong ----------------------------------------------------------------------------------------


def output_of(table: np.ndarray, bucket: np.ndarray) -> np.ndarray:
    return np.moveaxis(table[bucket], -1, 0)[None]


def by_buckets(name: str, change: Callable[[Case], np.ndarray | None]) -> Mistake:
    """Other buckets; none where the change has no place."""

    def results(failing: Failing) -> dict[str, Any] | None:
        case, bucket = failing.case, change(failing.case)
        if bucket is None:
            return None
        table = case.inputs["table"].astype(float)
        found, gradient = {"output": output_of(table, bucket)}, np.zeros_like(table)
        if case.cotangents:
            np.add.at(gradient, bucket, np.moveaxis(failing.bar[0], 0, -1))
            found[gradient_name("table")] = gradient
        return found

    return resulting(name, results)


def pairs_of(failing: Failing) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the table that are read for every query and key, and the cotangents of what is read."""
    bar = np.moveaxis(failing.bar[0], 0, -1)
    return buckets(failing.case, distances(failing.case)).ravel(), bar.reshape(-1, bar.shape[-1])


def measured(failing: Failing, name: str) -> Iterator[Mistake]:
    return lookups.added_up_in_16_bits(failing, *pairs_of(failing)) if name == lookups.NAME else iter(())


def swapped(case: Case) -> np.ndarray | None:
    """Keys before the query have the second half."""
    size, found = len(case.inputs["table"]) // 2, buckets(case, distances(case))
    return np.where(found < size, found + size, found - size) if case.options["bidirectional"] else None


def logarithms(case: Case, dtype: type[Any]) -> np.ndarray:
    rows, both, relative = len(case.inputs["table"]), case.options["bidirectional"], distances(case)
    size, furthest = rows // 2 if both else rows, case.options.get("furthest", 128)
    e, n = size // 2, np.abs(relative) if both else np.maximum(-relative, 0)
    ratio = np.log(np.maximum(n, 1).astype(dtype) / dtype(e)) / dtype(math.log(furthest / e))
    late = np.minimum(e + (ratio * dtype(size - e)).astype(int), size - 1)
    return np.where(n < e, n, late) + size * (relative > 0) * both


def with_first_head(case: Case) -> Case | None:
    table = case.inputs["table"]
    return replace(case, inputs=case.inputs | {"table": np.repeat(table[:, :1], table.shape[1], axis=1)})


OPERATION = Operation(
    name=NAME,
    rules={"": "POS-6"},
    arguments=("table", "query_length", "key_length"),
    differentiated=("table",),
    copies=True,
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds,
    work=work,
    cases=cases,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=(
        instead("the offset is ignored", options(offset=0)),
        instead("the furthest distance is 128, whatever is asked", options(furthest=128)),
        instead("keys after the query share one bucket", options(bidirectional=False)),
        instead("keys after the query have buckets of their own", options(bidirectional=True)),
        instead("every head has the first one's bias", with_first_head),
        by_buckets("the two halves of the table are swapped", swapped),
        by_buckets("the distance has the opposite sign", lambda case: buckets(case, -distances(case))),
        by_buckets("distances count from 1", lambda case: buckets(case, distances(case) - 1)),
        by_buckets("buckets come from float32 logarithms", lambda case: logarithms(case, np.float32)),
        by_buckets("buckets come from float64 logarithms", lambda case: logarithms(case, np.float64)),
    ),
    measured=measured,
    row_sums=lambda failing: lookups.table_sums(failing, *pairs_of(failing)),
)
