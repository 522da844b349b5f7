"""Feed-forward networks, and the activation that is an operation of its own."""

from __future__ import annotations

from dataclasses import replace

from conformance.cases.axes import Described, leading
from conformance.cases.case import Case
from conformance.cases.operation import OperationFacts, Rows, Shape, Structure
from specification import FeedForward, GatedFeedForward


def network_shape(case: Case, name: str, layout: str) -> Shape:
    return (*case.inputs["x"].shape[:-1], case.inputs["outer.weight"].shape[-1])


def network_dimensions(case: Case) -> dict[str, int]:
    x, inner = case.inputs["x"], case.inputs["inner.weight"].shape[1]
    return {"rows": x.size // max(x.shape[-1], 1), "model_width": x.shape[-1], "inner_width": inner}


def network_axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["x"], 1)
    inner, outer = case.inputs["outer.weight"].shape
    sizes |= {"E": case.inputs["x"].shape[-1], "inner": inner, "output": outer}
    E, inside, out = ("E",), ("inner",), ("output",)
    arrays = {"x": (*rows, E), "inner.weight": (E, inside), "inner.bias": (inside,), "outer.weight": (inside, out)}
    arrays |= {"gate.weight": (E, inside), "gate.bias": (inside,)}
    keep = {"option dropout_keep": (*rows, inside)}
    return sizes, arrays | {"outer.bias": (out,), "-> output": (*rows, out)} | keep, {}


FEED_FORWARD = OperationFacts(
    name="feed_forward",
    rules={"": "FFN-1"},
    arguments=("parameters", "x"),
    differentiated=("parameters", "x"),
    structure=Structure(FeedForward, ("inner", "outer")),
    rows=Rows("x", lambda case: 1),
    shape=network_shape,
    dimensions=network_dimensions,
    axes=network_axes,
)
GATED_FEED_FORWARD = replace(
    FEED_FORWARD,
    name="gated_feed_forward",
    rules={"": "FFN-2"},
    structure=Structure(GatedFeedForward, ("gate", "inner", "outer")),
)


def silu_shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["x"].shape


def silu_dimensions(case: Case) -> dict[str, int]:
    return {"rows": case.inputs["x"].size}


def silu_axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["x"], 0)
    return sizes, {"x": rows, "-> output": rows}, {}


SILU = OperationFacts(
    name="silu",
    rules={"": "ACT-1"},
    arguments=("x",),
    differentiated=("x",),
    rows=Rows("x", lambda case: 0),
    shape=silu_shape,
    dimensions=silu_dimensions,
    axes=silu_axes,
)
