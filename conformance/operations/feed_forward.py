"""The feed-forward network: two projections with an activation between them, at every position."""

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
from conformance.sampling.plan.covering import MODEL_WIDTHS, ROWS, Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.strategies import ACTIVATIONS

NAME = "feed_forward"
PLAN = Plan(
    values={
        "rows": ROWS,
        "model_width": MODEL_WIDTHS,
        "inner_width": MODEL_WIDTHS,
        "outer_width": (1, 3, 5, 129, 1025),
    },
    typical={"rows": (3, 130, 65537), "model_width": (5, 257, 3000), "inner_width": (7, 513, 4097)}
    | {"outer_width": (3, 5)},
    ordinary=(
        {"rows": 256, "model_width": 256, "inner_width": 1024, "outer_width": 256},
        {"rows": 512, "model_width": 512, "inner_width": 2048, "outer_width": 512},
    ),
)


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.feed_forward_cases, NAME, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=(((row["rows"], row["model_width"]), row["inner_width"], row["outer_width"]),))

    return [
        *(agreement("FFN-1", f"with {name}", NAME, cases((name,)), weight=2.0) for name in ACTIVATIONS),
        agreement("FFN-1", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    network = {"x": array(2, 3, 6), "inner.weight": array(6, 9), "outer.weight": array(9, 6)}
    yield array.refusal("FFN-1", "an unknown activation", ValueError, NAME, network, activation="swish")
    apart = network | {"outer.weight": array(8, 6)}
    yield array.refusal("FFN-1", "layers that do not fit", ValueError, NAME, apart)


OPERATION = JudgedOperation(NAME, probes, refusals)
