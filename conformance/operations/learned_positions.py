"""Learned positions: the first rows of a table, or those from an offset on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import MODEL_WIDTHS, POSITIONS, VOCABULARIES, Row
from conformance.sampling.plan.layers import Plan

NAME = "learned_positions"
PLAN = Plan(
    values={"length": POSITIONS, "vocabulary": VOCABULARIES, "model_width": MODEL_WIDTHS},
    typical={"length": (5, 129, 65537), "vocabulary": (5, 1000, 65537), "model_width": (5, 320, 5000)},
    ordinary=tuple(
        {"length": length, "vocabulary": length, "model_width": width}
        for length, width in ((64, 16), (512, 768), (512, 2048), (2048, 512))
    ),
)


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.lookup_cases, NAME, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=((row["vocabulary"], row["model_width"], (row["length"],)),))

    return [
        agreement("POS-2", "learned", NAME, cases(), weight=2.0),
        agreement("POS-2", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    table = {"table": array(4, 3)}
    yield array.refusal("POS-2", "a position past the table", ValueError, NAME, table, length=5)


OPERATION = JudgedOperation(NAME, probes, refusals)
