"""The gated feed-forward network: two projections of x, one of them activated, are multiplied and projected again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.feed_forward import PLAN
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import Row
from conformance.sampling.strategies import ACTIVATIONS

NAME = "gated_feed_forward"


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.feed_forward_cases, NAME, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=(((row["rows"], row["model_width"]), row["inner_width"], row["outer_width"]),))

    return [
        *(agreement("FFN-2", f"gated by {name}", NAME, cases((name,)), weight=1.5) for name in ACTIVATIONS),
        agreement(
            "FFN-2", "activation before the product", NAME, generation.gates_rounded_alike(declaration=declaration)
        ),
        agreement("FFN-2", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    network = {"gate.weight": array(6, 9), "inner.weight": array(6, 9), "outer.weight": array(9, 6)}
    network = {"x": array(2, 3, 6)} | network
    yield array.refusal("FFN-2", "an unknown activation", ValueError, NAME, network, activation="swish")
    apart = network | {"gate.weight": array(6, 1)}
    yield array.refusal("FFN-2", "a gate of another width", ValueError, NAME, apart)


OPERATION = JudgedOperation(NAME, probes, refusals)
