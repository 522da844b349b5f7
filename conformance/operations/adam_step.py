"""Adam: a step of every parameter, by moving averages of its gradient and of the gradient's square."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import optimizers as bounds_of
from conformance.bounds.arithmetic import Approx, Precision
from conformance.bounds.operations import finished
from conformance.cases.axes import Described, leading
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.operation import Operation, Shape, State
from conformance.checks.histories import plain_histories
from conformance.checks.levels import ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.diagnosis import stepping
from conformance.operations.common import rows_of_layers
from conformance.sampling.layouts import with_memory
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import ROWS
from conformance.sampling.strategies import DTYPES, EXACTLY, Draw, judged, numpy_dtype, seeds, some, taken
from specification.dtypes import HALF, compute_dtype_name
from specification.optimizers import AdamState

NAME = "adam_step"
PLAN = Plan(values={"rows": ROWS}, typical={"rows": (3, 130, 65537)})
SHAPES = ((7,), (3, 5), (2, 3, 4), (1,), (40,))

USUAL: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.1, 1.0, 1e-3, 0.03),
    "beta_1": (0.9, 0.9, 0.5, 0.0, 0.99),
    "beta_2": (0.999, 0.999, 0.98, 0.9, 0.0),
    "eps": (1e-8, 1e-8, 1e-3, 0.1),
    "weight_decay": (0.0, 0.0, 0.3, 0.01),
    "decoupled": (True, False),
}
"""Options, each drawn from its choices."""
STEPS = (0, 0, 1, 2, 9, 99, 999)
LATE = (9_999, 99_999, 999_999)
SMALL, LARGE = 1e-7, {"float16": 1e4, "bfloat16": 1e14, "float32": 1e14, "float64": 1e120}
"""Gradients as small as eps; gradients whose squares the compute dtype still holds."""
VANISHING = {"float32": 1e-21, "float64": 1e-160}
"""By compute dtype: gradients whose squares are too small for normal numbers."""


def work(passes: int, gradients: bool, *, rows: int) -> int:
    return rows * 120


def shape(case: Case, name: str, layout: str) -> Shape:
    return () if name == "step" else case.inputs["parameters"].shape


def dimensions(case: Case) -> dict[str, int]:
    return {"rows": case.inputs["parameters"].size}


def axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["parameters"], 0)
    return sizes, dict.fromkeys(case.inputs, rows), {}


@st.composite
def cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("usual", "usual", "small", "zeros"),
    steps: tuple[int, ...] = STEPS,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[int, ...], ...] = SHAPES,
    options: dict[str, tuple[Any, ...]] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """kinds: of gradients, the choices. special: NaN and infinity stand among them. plans: the shapes.

    options: choices in place of the usual ones.
    """
    shape = draw(st.sampled_from(plans))
    count = prod(shape)
    cheap = work(1, False, rows=count) <= EXACTLY
    dtype = draw(st.sampled_from(some(d for d in judged(dtypes, declaration) if cheap or d != "float64")))
    wide, kind = compute_dtype_name(dtype), draw(st.sampled_from(kinds))
    given = {
        name: draw(st.sampled_from(taken(NAME, name, choices, declaration)))
        for name, choices in (USUAL | (options or {})).items()
    }
    d = Draw(draw(seeds), dtype)
    size = {"small": SMALL, "large": LARGE[dtype], "vanishing": VANISHING[wide]}.get(kind, 1.0)
    gradients = d.numbers(count) * size
    mean, square = d.numbers(count) * size, (d.numbers(count) * size) ** 2
    step = draw(st.sampled_from(steps))
    if step == 0 and draw(st.booleans()):
        mean, square = np.zeros(count), np.zeros(count)
    if kind == "zeros":
        gradients, square = gradients * d.booleans(count, share=0.6), square * d.booleans(count, share=0.5)
        mean = mean * (square > 0)
    if special:
        gradients = np.where(d.booleans(count, share=0.5), d.choice((np.nan, np.inf, -np.inf), count), gradients)
        mean = np.where(d.booleans(count, share=0.1), np.nan, mean)
    # Of 16 bits a gradient may come in either dtype, and small ones only in the wider one.
    narrow = dtype in HALF and kind not in ("small", "vanishing") and draw(st.booleans())
    arrays = {
        "parameters": d.cast(d.numbers(count) * draw(st.sampled_from((1.0, 0.1)))),
        "gradients": gradients.astype(numpy_dtype(dtype if narrow else wide)),
        "mean": mean.astype(wide),
        "square": square.astype(wide),
    }
    inputs = {name: array.reshape(shape) for name, array in arrays.items()}
    return with_memory(draw, Case(NAME, dtype, inputs, {"step": step, **given}, special=special), declaration)


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return drawn(("usual",), plans=((row["rows"],),))

    decay = {"weight_decay": (0.3, 0.1)}
    return [
        agreement("OPT-1", "adam", NAME, drawn(), weight=2.0),
        agreement("OPT-1", "first steps", NAME, drawn(("usual", "small"), (0, 1)), weight=1.5),
        agreement("OPT-1", "late steps", NAME, drawn(("usual",), LATE)),
        agreement("OPT-1", "gradients as small as eps", NAME, drawn(("small",), options={"eps": (1e-8, 1e-7)})),
        agreement("OPT-1", "weight decay", NAME, drawn(("usual", "small"), options=decay), weight=1.5),
        agreement("OPT-1", "zero gradients", NAME, drawn(("zeros",))),
        agreement("OPT-1", "huge and vanishing squares", NAME, drawn(("large", "vanishing")), level=ROBUST),
        agreement(
            "OPT-1", "NaN and infinity in gradients of adam_step", NAME, drawn(("usual",), special=True), 0.8, ROBUST
        ),
        agreement("OPT-1", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    wide = compute_dtype_name(array.dtype)

    def refused(title: str, error: Kind, changes: dict[str, Any], **options: Any) -> Refusal:
        inputs = {"parameters": array(2, 3), "gradients": array(2, 3)} | dict.fromkeys(
            ("mean", "square"), np.abs(array(2, 3, dtype=wide))
        )
        given = {"step": 3, "learning_rate": 0.1} | options
        return array.refusal("OPT-1", title, error, NAME, inputs | changes, **given)

    yield refused("gradients of another shape", ValueError, {"gradients": array(3, 2)})
    yield refused("a mean of another shape", ValueError, {"mean": array(3, dtype=wide)})
    yield refused("parameters of integers", TypeError, {"parameters": np.ones((2, 3), int)})
    yield refused("a negative learning rate", ValueError, {}, learning_rate=-0.1)
    yield refused("beta_2 of 1", ValueError, {}, beta_2=1.0)
    yield refused("eps 0", ValueError, {}, eps=0.0)
    yield refused("a negative step", ValueError, {}, step=-1)


def bounds(case: Case, p: Precision, naive: bool = False) -> dict[str, Approx]:
    """As `bounds/optimizers.py` derives them."""
    return bounds_of.adam(case.inputs, case.options, p, naive)


def relaxed(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow 1 - beta and 1 - beta^t as the compute dtype gives them, where they cancel."""
    p = Precision.of(case.dtype)
    with np.errstate(all="ignore"):
        return {name: finished(name, approx, case, p) for name, approx in bounds(case, p, naive=True).items()}


OPERATION = Operation(
    name=NAME,
    rules={"": "OPT-1"},
    arguments=("parameters", "gradients", "state"),
    differentiated=(),
    results=("parameters", "state"),
    state=State(AdamState, ("step", "mean", "square")),
    wide=("mean", "square"),
    positive=("square",),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds,
    relaxed=relaxed,
    work=work,
    cases=cases,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=stepping.ADAM,
)
