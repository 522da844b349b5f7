"""The feed-forward network: two projections with an activation between them, at every position."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hypothesis import strategies as st

from conformance.bounds import operations as bounds
from conformance.cases.axes import Described, leading
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.operation import Operation, Rows, Shape, Structure
from conformance.checks.histories import plain_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.diagnosis import feed_forward
from conformance.operations.common import rows_of_layers
from conformance.oracle.reference import feed_forward_work
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import MODEL_WIDTHS, ROWS
from conformance.sampling.strategies import ACTIVATIONS
from specification import FeedForward

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
)


def shape(case: Case, name: str, layout: str) -> Shape:
    return (*case.inputs["x"].shape[:-1], case.inputs["outer.weight"].shape[-1])


def dimensions(case: Case) -> dict[str, int]:
    x, inner = case.inputs["x"], case.inputs["inner.weight"].shape[1]
    return {"rows": x.size // max(x.shape[-1], 1), "model_width": x.shape[-1], "inner_width": inner}


def axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["x"], 1)
    inner, outer = case.inputs["outer.weight"].shape
    sizes |= {"E": case.inputs["x"].shape[-1], "inner": inner, "output": outer}
    E, inside, out = ("E",), ("inner",), ("output",)
    arrays = {"x": (*rows, E), "inner.weight": (E, inside), "inner.bias": (inside,), "outer.weight": (inside, out)}
    arrays |= {"gate.weight": (E, inside), "gate.bias": (inside,)}
    keep = {"option dropout_keep": (*rows, inside)}
    return sizes, arrays | {"outer.bias": (out,), "-> output": (*rows, out)} | keep, {}


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.feed_forward_cases, NAME, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=(((row["rows"], row["model_width"]), row["inner_width"], row["outer_width"]),))

    return [
        *(agreement("FFN-1", f"with {name}", NAME, cases((name,)), weight=2.0) for name in ACTIVATIONS),
        agreement("FFN-1", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    network = {"x": array(2, 3, 6), "inner.weight": array(6, 9), "outer.weight": array(9, 6)}
    yield array.refusal("FFN-1", "an unknown activation", ValueError, NAME, network, activation="swish")
    apart = network | {"outer.weight": array(8, 6)}
    yield array.refusal("FFN-1", "layers that do not fit", ValueError, NAME, apart)


OPERATION = Operation(
    name=NAME,
    rules={"": "FFN-1"},
    arguments=("parameters", "x"),
    differentiated=("parameters", "x"),
    structure=Structure(FeedForward, ("inner", "outer")),
    rows=Rows("x", lambda case: 1),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds.feed_forward,
    work=feed_forward_work,
    cases=partial(generation.feed_forward_cases, NAME),
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=feed_forward.MISTAKES,
    measured=feed_forward.measured,
    row_sums=feed_forward.row_sums,
)
