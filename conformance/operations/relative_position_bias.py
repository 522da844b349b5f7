"""Relative positions: a bias from a table, by the bucket of the distance between query and key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.levels import STRICT
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.plan.covering import KEY_HEADS, LENGTHS, ROWS, Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.positions import relative_bias_cases

NAME = "relative_position_bias"
PLAN = Plan(
    values={"heads": KEY_HEADS, "queries": ROWS, "keys": LENGTHS},
    typical={"heads": (3, 32), "queries": (3, 130, 1025), "keys": (5, 129, 65537)},
)


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(relative_bias_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return drawn(plan=(row["heads"], row["queries"], row["keys"]))

    return [
        agreement("POS-6", "relative buckets", NAME, drawn(), weight=2.0),
        agreement("POS-6", "edges of buckets where logarithms err", NAME, drawn(hard=True), weight=1.5, level=STRICT),
        agreement("POS-6", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def make_refusal(title: str, error: Kind, rows: int = 8, **changes: Any) -> Refusal:
        given = {"query_length": 3, "key_length": 4, "bidirectional": True} | changes
        return array.refusal("POS-6", title, error, NAME, {"table": array(rows, 2)}, **given)

    yield make_refusal("a table of three buckets for both directions", ValueError, rows=3)
    yield make_refusal("a furthest distance that has a bucket of its own", ValueError, furthest=2)
    yield make_refusal("bidirectional that is no truth value", TypeError, bidirectional=1)


OPERATION = JudgedOperation(NAME, probes, refusals)
