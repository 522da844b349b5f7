"""Layer norm: every row is centred and brought to the same size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import CONSTANT_ROWS, SPOILED_ROWS
from conformance.checks.histories import norm_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations.common import WIDE, rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import draws, special
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import NORM_WIDTHS, ROWS, Row
from conformance.sampling.plan.layers import SMALL, Plan
from conformance.sampling.strategies import NORM_SHAPES
from specification.dtypes import HALF

NAME = "layer_norm"
PLAN = Plan(
    values={"rows": ROWS, "norm_width": NORM_WIDTHS},
    typical={"rows": (3, 40, 129, 1025, 65537), "norm_width": (5, 40, 257, 1025, 3000, 20480, 65537)},
    ordinary=({"rows": 512, "norm_width": 2048},),
)
"""Of every norm."""


def norm_rows(operation: str, title: str, declaration: Declaration, large: int = 1, **given: Any) -> draws.Rows:
    """Cases of a norm at the sizes of its plan. large: as for `rows_of_layers`; gradients take four times the time."""

    def cases(row: Row) -> st.SearchStrategy[Case]:
        rows, width = row["rows"], row["norm_width"]
        small = declaration.compiled or SMALL.affords(row)
        # A large case is the only one of its sizes, so it normalises one axis, as all functions do.
        shapes = generation.norm_shapes(rows, width) if small else (((rows, width), 1),)
        return generation.norm_cases(operation, plans=shapes, declaration=declaration, **given)

    return rows_of_layers(PLAN, cases, declaration, title, large)


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.norm_cases, declaration=declaration)
    planned = partial(norm_rows, NAME, declaration=declaration)
    tiny: dict[str, Any] = {"means": (0.0,), "spreads": (1e-4, 1e-3), "epsilons": (1e-12,)}
    far: dict[str, Any] = {"means": (1e3, -1e4), "gradients": False, "dtypes": WIDE}
    narrow: dict[str, Any] = {"gradients": False, "dtypes": HALF}

    def agree(rule: str, title: str, cases: draws.CaseStrategy, weight: float = 1.0) -> Probe:
        return agreement(rule, title, NAME, cases, weight)

    return [
        agree("NORM-1", "layer norm", cases(gradients=False)),
        *(agree("NORM-1", f"rows of {list(x[-n:])}", cases(plans=((x, n),)), weight=0.2) for x, n in NORM_SHAPES),
        agree("NORM-1", "eps left out", cases(spreads=(3e-3, 0.03), default_eps=True), weight=0.5),
        agree("NORM-1", "a tiny eps", cases(**tiny), weight=0.4),
        agree("NORM-2", "16-bit inputs", cases(**narrow), weight=2.0),
        Probe("NORM-3", "constant rows", (NAME,), special.constant_rows(declaration=declaration), CONSTANT_ROWS, 2.5),
        agree("NORM-4", "far from zero", cases(**far)),
        agree("NORM-4", "a first element far from the others", special.outlying_rows(declaration)),
        spoiled_probe(NAME, declaration),
        agree("NORM-6", "gradients", cases(focus=("gradients",)), weight=2.0),
        agree("NORM-1", "layer norm, sizes", planned("output", large=2, gradients=False)),
        agree("NORM-2", "16-bit inputs, sizes", planned("16 bits", large=0, **narrow), 0.3),
        agree("NORM-4", "far from zero, sizes", planned("far", large=0, far=True, **far), 1.75),
        agree("NORM-6", "gradients, sizes", planned("grad", focus=("gradients",))),
    ]


def spoiled_probe(operation: str, declaration: Declaration) -> Probe:
    cases = special.spoiled_rows(operation, declaration)
    return Probe("NORM-5", f"NaN and infinity in {operation}", (operation,), cases, SPOILED_ROWS, weight=0.5)


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    bias = {} if "bias" in declaration.lacking else {"bias": array(6)}

    def make_refusal(rule: str, title: str, error: Kind, eps: float = 1e-5, **changes: Any) -> Refusal:
        inputs = {"x": array(2, 3, 6), "weight": array(6)} | bias | changes
        return array.refusal(rule, title, error, NAME, inputs, eps=eps)

    yield make_refusal("NORM-1", "weight of another width", ValueError, weight=array(5))
    yield make_refusal("NORM-1", "eps 0", ValueError, eps=0.0)
    yield make_refusal("NORM-2", "mixed dtypes", TypeError, weight=array(6, dtype=array.another))


OPERATION = JudgedOperation(NAME, probes, refusals, norm_histories)
