"""ALiBi: a bias that falls with the distance between query and key, more or less steeply in each head."""

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
from conformance.sampling.plan.covering import KEY_HEADS, LENGTHS, ROWS, Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.positions import alibi_cases

NAME = "alibi_bias"
PLAN = Plan(
    values={"heads": KEY_HEADS, "queries": ROWS, "keys": LENGTHS},
    typical={"heads": (3, 32), "queries": (3, 130, 1025), "keys": (5, 129, 65537)},
)


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(alibi_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return drawn(plan=(row["heads"], row["queries"], row["keys"]))

    return [
        agreement("POS-5", "alibi", NAME, drawn(), weight=1.5),
        agreement("POS-5", "heads that are no power of two", NAME, drawn(heads=(3, 6, 12, 20, 40, 71))),
        agreement("POS-5", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    given = {"query_length": 3, "key_length": 4}
    yield array.refusal("POS-5", "no heads", ValueError, NAME, {}, num_heads=0, **given)
    yield array.refusal("POS-5", "a negative offset", ValueError, NAME, {}, num_heads=2, offset=-1, **given)


OPERATION = JudgedOperation(NAME, probes, refusals)
