"""Embedding: a row of a table for every token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import MODEL_WIDTHS, ROWS, VOCABULARIES, Row
from conformance.sampling.plan.layers import Plan
from specification.dtypes import HALF

NAME = "embedding"
PLAN = Plan(
    values={"rows": ROWS, "vocabulary": VOCABULARIES, "model_width": MODEL_WIDTHS},
    typical={"rows": (3, 130, 65537), "vocabulary": (5, 1000, 65537), "model_width": (5, 320, 5000)},
    ordinary=({"rows": 12, "vocabulary": 262144, "model_width": 4},),
)


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.lookup_cases, NAME, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=((row["vocabulary"], row["model_width"], (row["rows"],)),))

    return [
        agreement("EMB-1", "embedding", NAME, cases(), weight=2.0),
        agreement("EMB-1", "rows of 16 bits scaled", NAME, cases((True,), HALF), weight=0.5),
        agreement("EMB-1", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def make_refusal(title: str, error: Kind, ids: np.ndarray) -> Refusal:
        return array.refusal("EMB-1", title, error, NAME, {"table": array(4, 3), "ids": ids})

    yield make_refusal("an id past the vocabulary", ValueError, np.array([0, 4]))
    yield make_refusal("a negative id", ValueError, np.array([0, -1]))
    yield make_refusal("ids that are no integers", TypeError, array(2))


OPERATION = JudgedOperation(NAME, probes, refusals)
