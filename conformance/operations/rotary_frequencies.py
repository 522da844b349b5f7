"""Frequencies of rotary embeddings, and the factor of sine and cosine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.plan.covering import MODEL_WIDTHS, Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.rotary import SCALED, frequency_cases
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling

NAME = "rotary_frequencies"
PLAN = Plan(
    values={"model_width": tuple(width for width in MODEL_WIDTHS if width % 2 == 0)},
    typical={"model_width": (8, 128, 1000)},
)


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(frequency_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return cases(("none",), widths=(row["model_width"],))

    return [
        agreement("POS-4", "frequencies", NAME, cases(("none",))),
        *(agreement("POS-4", f"{kind} frequencies", NAME, cases((kind,)), 1.5) for kind in SCALED),
        agreement("POS-4", "frequencies, sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def make_refusal(title: str, error: Kind, **given: Any) -> Refusal:
        return array.refusal("POS-4", title, error, NAME, {}, **{"width": 8, "base": 10000.0} | given)

    ramp = Llama3Scaling(factor=8.0, low_frequency_factor=4.0, high_frequency_factor=1.0, original_length=8192)
    yield make_refusal("frequencies of an odd width", ValueError, width=7)
    yield make_refusal("a base below 1", ValueError, base=0.5)
    yield make_refusal("a scaling of another kind", TypeError, scaling={"factor": 2.0})
    yield make_refusal("a factor below 1", ValueError, scaling=LinearScaling(factor=0.25))
    yield make_refusal("a factor that is NaN", ValueError, scaling=LinearScaling(factor=float("nan")))
    yield make_refusal("a low factor above the high one", ValueError, scaling=ramp)
    narrow = DynamicScaling(factor=2.0, original_length=8)
    yield make_refusal("a dynamic scaling of one pair", ValueError, width=2, scaling=narrow)


OPERATION = JudgedOperation(NAME, probes, refusals)
