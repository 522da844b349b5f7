"""Gradients clipped by their norm: all arrays scaled by one number, where the norm of all exceeds a limit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import optimizers as bounds_of
from conformance.bounds.arithmetic import Approx, Precision
from conformance.cases.arguments import listed
from conformance.cases.axes import Arrays, Axis, Described, Sizes
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.operation import Operation, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.levels import ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.diagnosis import stepping
from conformance.operations.adam_step import PLAN
from conformance.operations.common import rows_of_layers
from conformance.sampling.layouts import with_memory
from conformance.sampling.plan.covering import Row
from conformance.sampling.strategies import DTYPES, EXACTLY, Draw, judged, numpy_dtype, seeds, some

NAME = "clip_by_global_norm"
SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((3, 5), (5,), (7,)),
    ((2, 3, 4), (1,)),
    ((40,), (2, 2)),
    ((6,),),
)
"""Of the arrays of one case."""
FAR_BELOW = (1e-39, 1e-41, 1e-43)
"""Limits in units of the norm, as which float32 has numbers of few digits only."""
LIMITS = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0, 1.0, np.inf)
"""In units of the norm."""
EXTREME = {
    "float16": (2.0**13, 2.0**-20),
    "bfloat16": (2.0**125, 2.0**-110),
    "float32": (2.0**125, 2.0**-110),
    "float64": (2.0**1020, 2.0**-700),
}
"""Gradients whose squares the compute dtype does not hold, or in float16 nearly so."""


def work(passes: int, gradients: bool, *, rows: int) -> int:
    return rows * 30


def shape(case: Case, name: str, layout: str) -> Shape:
    return () if name == "norm" else case.inputs[name].shape


def dimensions(case: Case) -> dict[str, int]:
    return {"rows": sum(array.size for array in case.inputs.values())}


def axes(case: Case) -> Described:
    """Every array has axes of its own."""
    sizes: Sizes = {"parts": len(case.inputs)}
    arrays: Arrays = {}
    for name, array in case.inputs.items():
        own: tuple[Axis, ...] = tuple((f"rows {len(sizes) + k}",) for k in range(array.ndim))
        sizes |= {axis[0]: size for axis, size in zip(own, array.shape, strict=True)}
        arrays[name] = own
    return sizes, arrays, {"gradients": ("parts",)}


@st.composite
def cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("usual", "usual", "small", "uneven", "zeros"),
    limits: tuple[float, ...] = LIMITS,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[tuple[int, ...], ...], ...] = SHAPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """kinds: of gradients, the choices. limits: the choices, in units of the norm. plans: the shapes of the arrays.

    "small": the norm is far below 1. "uneven": one array is far larger than the others. special: NaN and infinity.
    """
    shapes = draw(st.sampled_from(plans))
    cheap = work(1, False, rows=sum(map(prod, shapes))) <= EXACTLY
    dtype = draw(st.sampled_from(some(d for d in judged(dtypes, declaration) if cheap or d != "float64")))
    kind, share = draw(st.sampled_from(kinds)), draw(st.sampled_from(limits))
    d = Draw(draw(seeds), dtype)
    huge, tiny = EXTREME[dtype]
    size = {"small": 1e-3, "huge": huge, "tiny": tiny}.get(kind, 1.0)
    arrays = [
        d.cast(d.numbers(*shape) * size * (100.0 if kind == "uneven" and i == 0 else 1.0))
        for i, shape in enumerate(shapes)
    ]
    if kind == "zeros":
        arrays = [array * d.booleans(*array.shape, share=draw(st.sampled_from((0.0, 0.4)))) for array in arrays]
        arrays = [array.astype(numpy_dtype(dtype)) for array in arrays]
    norm = bounds_of.global_norm(arrays)
    limit = (norm if share == 1 else float(f"{norm * share:.3g}")) if norm > 0 else 1.0
    if special:
        chosen = int(d.integers(0, len(arrays) - 1))
        arrays[chosen].flat[int(d.integers(0, arrays[chosen].size - 1))] = d.choice((np.nan, np.inf, -np.inf), 1)[0]
    inputs = {f"gradients[{i}]": array for i, array in enumerate(arrays)}
    return with_memory(draw, Case(NAME, dtype, inputs, {"limit": limit}, special=special), declaration)


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return drawn(("usual",), (0.1, 0.5), plans=(((row["rows"],), (3, 2)),))

    usual = ("usual", "small", "uneven")
    return [
        agreement("OPT-3", "clip", NAME, drawn(usual), weight=1.5),
        agreement("OPT-3", "norms below the limit", NAME, drawn(usual, (1.1, 2.0, 10.0, np.inf))),
        agreement("OPT-3", "small norms", NAME, drawn(("small",), (0.1, 0.5), dtypes=("float32", "float64"))),
        agreement("OPT-3", "several arrays", NAME, drawn(("uneven",), (0.1, 0.5, 0.9), plans=SHAPES[:3])),
        agreement("OPT-3", "no gradient", NAME, drawn(("zeros",)), weight=0.5),
        agreement("OPT-3", "huge and tiny gradients", NAME, drawn(("huge", "tiny")), level=ROBUST),
        agreement(
            "OPT-3", "limits far below the norm", NAME, drawn(("huge",), FAR_BELOW, dtypes=("float32",)), 0.5, ROBUST
        ),
        agreement("OPT-3", "NaN and infinity in gradients to clip", NAME, drawn(usual, special=True), 0.5, ROBUST),
        agreement("OPT-3", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def refused(title: str, error: type[Exception], inputs: dict[str, Any], limit: float = 1.0) -> Refusal:
        return array.refusal("OPT-3", title, error, NAME, inputs, limit=limit)

    gradients = {"gradients[0]": array(2, 3), "gradients[1]": array(5)}
    yield refused("a limit of 0", ValueError, gradients, 0.0)
    yield refused("gradients of integers", TypeError, gradients | {"gradients[1]": np.array([1, 2])})
    yield refused("no gradients", ValueError, {})


def bounds(case: Case, p: Precision) -> dict[str, Approx]:
    """As `bounds/optimizers.py` derives them."""
    gradients, norm = bounds_of.clip(listed(case.inputs, "gradients"), case.options["limit"], p)
    return {f"gradients[{i}]": gradient for i, gradient in enumerate(gradients)} | {"norm": norm}


OPERATION = Operation(
    name=NAME,
    rules={"": "OPT-3"},
    arguments=("gradients", "limit"),
    differentiated=(),
    results=("gradients", "norm"),
    lists=("gradients",),
    wide=("norm",),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds,
    work=work,
    cases=cases,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=stepping.CLIPPING,
)
