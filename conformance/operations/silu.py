"""SiLU: x * sigmoid(x), element by element."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.plan.covering import ROWS, Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.strategies import silu_cases

NAME = "silu"
PLAN = Plan(values={"rows": ROWS}, typical={"rows": (3, 130, 65537)})


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(silu_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return drawn(plans=((row["rows"],),))

    return [
        agreement("ACT-1", "silu", NAME, drawn(), weight=2.0),
        agreement("ACT-1", "the last normal numbers", NAME, drawn(("last normal",))),
        agreement("ACT-1", "NaN and infinity in silu", NAME, drawn(special=True), weight=0.5),
        agreement("ACT-1", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    yield array.refusal("ACT-1", "x of integers", TypeError, NAME, {"x": np.array([1, -2])})


OPERATION = JudgedOperation(NAME, probes, refusals)
