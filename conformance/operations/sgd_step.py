"""Gradient descent with momentum: a step of every parameter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import optimizers as bounds_of
from conformance.bounds.arithmetic import Approx, Precision
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.operation import Operation, Shape, State
from conformance.checks.histories import plain_histories
from conformance.checks.levels import ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.diagnosis import stepping
from conformance.operations.adam_step import PLAN, SHAPES, axes, dimensions
from conformance.operations.common import rows_of_layers
from conformance.sampling.layouts import with_memory
from conformance.sampling.plan.covering import Row
from conformance.sampling.strategies import (
    DTYPES,
    EXACTLY,
    HUGE,
    TINY,
    Draw,
    judged,
    numpy_dtype,
    seeds,
    some,
    taken,
)
from specification.dtypes import HALF, compute_dtype_name
from specification.optimizers import SgdState

NAME = "sgd_step"
USUAL: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.1, 1.0, 1e-3, 0.03),
    "momentum": (0.9, 0.9, 0.5, 0.0),
    "nesterov": (False, True),
    "weight_decay": (0.0, 0.0, 0.3, 0.01),
}
"""Options, each drawn from its choices."""


def work(passes: int, gradients: bool, *, rows: int) -> int:
    return rows * 60


def shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["parameters"].shape


@st.composite
def cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("usual", "usual", "tiny", "huge", "zeros"),
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[int, ...], ...] = SHAPES,
    options: dict[str, tuple[Any, ...]] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """As `adam_step.cases`; "zeros": no velocity yet."""
    shape = draw(st.sampled_from(plans))
    count = prod(shape)
    cheap = work(1, False, rows=count) <= EXACTLY
    dtype = draw(st.sampled_from(some(d for d in judged(dtypes, declaration) if cheap or d != "float64")))
    wide, kind = compute_dtype_name(dtype), draw(st.sampled_from(kinds))
    given = {
        name: draw(st.sampled_from(taken(NAME, name, choices, declaration)))
        for name, choices in (USUAL | (options or {})).items()
    }
    given["nesterov"] = given["nesterov"] and given["momentum"] > 0
    d = Draw(draw(seeds), dtype)
    size = {"tiny": TINY[dtype], "huge": HUGE[dtype]}.get(kind, 1.0)
    gradients, velocity = d.numbers(count) * size, d.numbers(count) * size * (kind != "zeros")
    if special:
        gradients = np.where(d.booleans(count, share=0.5), d.choice((np.nan, np.inf, -np.inf), count), gradients)
    narrow = dtype in HALF and draw(st.booleans())
    arrays = {
        "parameters": d.cast(d.numbers(count) * (size if kind == "huge" else 1.0)),
        "gradients": gradients.astype(numpy_dtype(dtype if narrow else wide)),
        "velocity": velocity.astype(wide),
    }
    inputs = {name: array.reshape(shape) for name, array in arrays.items()}
    return with_memory(draw, Case(NAME, dtype, inputs, given, special=special), declaration)


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return drawn(("usual",), plans=((row["rows"],),))

    momentum = {"momentum": (0.9, 0.5)}
    return [
        agreement("OPT-2", "sgd", NAME, drawn(), weight=1.5),
        agreement("OPT-2", "momentum", NAME, drawn(("usual",), options=momentum | {"nesterov": (False,)})),
        agreement("OPT-2", "nesterov", NAME, drawn(("usual",), options=momentum | {"nesterov": (True,)})),
        agreement("OPT-2", "the first step", NAME, drawn(("zeros",), options=momentum)),
        agreement("OPT-2", "weight decay", NAME, drawn(("usual",), options={"weight_decay": (0.3, 0.1)})),
        agreement(
            "OPT-2", "NaN and infinity in gradients of sgd_step", NAME, drawn(("usual",), special=True), 0.5, ROBUST
        ),
        agreement("OPT-2", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    wide = compute_dtype_name(array.dtype)

    def refused(title: str, error: Kind, changes: dict[str, Any], **options: Any) -> Refusal:
        inputs = {"parameters": array(2, 3), "gradients": array(2, 3), "velocity": array(2, 3, dtype=wide)}
        given = {"learning_rate": 0.1} | options
        return array.refusal("OPT-2", title, error, NAME, inputs | changes, **given)

    yield refused("gradients of another shape", ValueError, {"gradients": array(3, 2)})
    yield refused("parameters of integers", TypeError, {"parameters": np.ones((2, 3), int)})
    yield refused("a momentum of 1", ValueError, {}, momentum=1.0)
    yield refused("nesterov without momentum", ValueError, {}, nesterov=True)


def bounds(case: Case, p: Precision) -> dict[str, Approx]:
    """As `bounds/optimizers.py` derives them."""
    return bounds_of.sgd(case.inputs, case.options, p)


OPERATION = Operation(
    name=NAME,
    rules={"": "OPT-2"},
    arguments=("parameters", "gradients", "state"),
    differentiated=(),
    results=("parameters", "state"),
    state=State(SgdState, ("velocity",)),
    wide=("velocity",),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds,
    work=work,
    cases=cases,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=stepping.SGD,
)
