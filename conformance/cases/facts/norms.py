"""Norms: every row brought to the same size."""

from __future__ import annotations

from dataclasses import replace

from conformance.cases.axes import Described, leading
from conformance.cases.case import Case
from conformance.cases.operation import OperationFacts, Rows, Shape


def norm_shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["x"].shape


def norm_dimensions(case: Case) -> dict[str, int]:
    x, width = case.inputs["x"], case.inputs["weight"].size
    return {"rows": x.size // max(width, 1), "norm_width": width}


def norm_axes(case: Case) -> Described:
    x, weight = case.inputs["x"], case.inputs["weight"]
    rows, sizes = leading(x, weight.ndim)
    widths = ["W", *(f"W {i}" for i in range(1, weight.ndim))][::-1]
    inner = tuple((name,) for name in widths)
    sizes |= dict(zip(widths, weight.shape, strict=True))
    return sizes, {"x": (*rows, *inner), "weight": inner, "bias": inner, "-> output": (*rows, *inner)}, {}


LAYER_NORM = OperationFacts(
    name="layer_norm",
    rules={"": "NORM-1", "dtype": "NORM-2", "gradients": "NORM-6"},
    arguments=("x", "weight", "bias"),
    differentiated=("x", "weight", "bias"),
    norm=True,
    rows=Rows("x", lambda case: case.inputs["weight"].ndim),
    shape=norm_shape,
    dimensions=norm_dimensions,
    axes=norm_axes,
)
RMS_NORM = replace(
    LAYER_NORM,
    name="rms_norm",
    rules={"": "NORM-7", "gradients": "NORM-6"},
    arguments=("x", "weight"),
    differentiated=("x", "weight"),
)
STANDARD_DEVIATION_NORM = replace(LAYER_NORM, name="standard_deviation_norm", rules={"": "NORM-7"}, least_width=2)
