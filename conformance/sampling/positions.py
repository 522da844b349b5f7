"""Cases of biases by distance."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.operation import OFFSET
from conformance.oracle.reference import AFFORDABLE, ball_work
from conformance.sampling.layouts import draw_memory
from conformance.sampling.strategies import (
    DTYPES,
    EXACTLY,
    Draw,
    cotangent,
    digits,
    draw_dtype,
    draw_option,
    judged_dtypes,
    reset_lacking,
    seeds,
    select_cotangents,
    some,
)
from specification.positions import bucket_edges

HEADS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 71)
LARGEST = 60000.0
"""In float16; what is farther becomes -inf there."""


@st.composite
def alibi_cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    heads: tuple[int, ...] = HEADS,
    plan: tuple[int, int, int] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """heads: the choices for their number. plan: heads, queries and keys."""
    limits = declaration.limits
    H = min(draw(st.sampled_from(heads)), limits.get("heads", max(heads)))
    Q, K = (draw(st.integers(0, min(20, limits.get(side, 20)))) for side in ("queries", "keys"))
    H, Q, K = plan or (H, Q, K)
    offset = draw(st.one_of(st.sampled_from((0, 0, max(K - Q, 0), 511, 4099)), digits(4)))
    able = dtypes if "dtype" not in declaration.lacking else ("float32",)
    cheap, near = ball_work("alibi_bias", gradients=False, pairs=H * Q * K) <= EXACTLY, max(offset + Q, K) < LARGEST
    able = tuple(d for d in judged_dtypes(able, declaration) if (cheap or d != "float64") and (near or d != "float16"))
    given: dict[str, Any] = {"num_heads": H, "query_length": Q, "key_length": K, OFFSET: offset}
    given = reset_lacking("alibi_bias", given | {"dtype": draw(st.sampled_from(some(able)))}, declaration)
    return Case("alibi_bias", given["dtype"], {}, given)


TABLES = ((32, 128), (32, 128), (16, 20), (64, 256), (4, 3), (5, 9), (12, 1000), (33, 128), (40, 2048))
"""Rows of the table, and the furthest distance."""
EDGES = (
    *((9, 128, 8), (10, 160, 10), (19, 288, 18), (20, 320, 20), (29, 448, 28), (8, 100, 20), (5, 16, 8)),
    *((32, 100, 40), (5, 686, 98), (6, 1029, 147), (11, 1715, 245), (15, 9317, 3791), (83, 1000, 796), (99, 784, 426)),
)
"""Buckets of a direction, the furthest distance, and one that float32 or float64 logarithms put into the wrong bucket.

The first five in float64 as log(n / e), the next three as log(n) - log(e), the others in float32.
"""


@st.composite
def relative_bias_cases(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = DTYPES,
    tables: tuple[tuple[int, int], ...] = TABLES,
    hard: bool = False,
    plan: tuple[int, int, int] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """tables: rows and furthest distances. hard: one of `EDGES` instead. plan: heads, queries and keys."""
    limits = declaration.limits
    bidirectional = draw_option(draw, "relative_position_bias", "bidirectional", (False, True), declaration)
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
    work = ball_work("relative_position_bias", gradients=True, pairs=H * Q * K)
    dtype = draw_dtype(draw, dtypes, declaration, work, AFFORDABLE / 8)
    d = Draw(draw(seeds), dtype)
    given: dict[str, Any] = {"query_length": Q, "key_length": K, "bidirectional": bidirectional, "furthest": furthest}
    given = reset_lacking("relative_position_bias", given | {OFFSET: offset}, declaration)
    cotangents = select_cotangents({"output": cotangent(draw, d, (1, H, Q, K), 0)}, declaration)
    return draw_memory(
        draw, Case("relative_position_bias", dtype, {"table": d.normal(rows, H)}, given, cotangents), declaration
    )
