"""Sinusoidal positions: sines and cosines of the position, in wavelengths from 2 pi to 10000 * 2 pi."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.histories import sinusoidal_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import MODEL_WIDTHS, POSITIONS, Row
from conformance.sampling.plan.layers import Plan

NAME = "sinusoidal_positions"
PLAN = Plan(
    values={"length": POSITIONS, "model_width": MODEL_WIDTHS},
    typical={"length": (5, 129, 65537), "model_width": (5, 320, 5000)},
)


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.sinusoidal_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plan=(row["length"], row["model_width"]))

    return [
        agreement("POS-1", "sinusoidal", NAME, cases(), weight=1.7),
        agreement("POS-1", "far positions", NAME, cases(offsets=(10_007, 20_011)), weight=0.5),
        agreement("POS-1", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    given = {"length": 3, "width": 4, "exponent": "one"}
    yield array.refusal("POS-1", "an unknown exponent", ValueError, NAME, {}, **given)


OPERATION = JudgedOperation(NAME, probes, refusals, sinusoidal_histories)
