"""Cases of optimizers' steps and of gradients to clip."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import optimizers as bounds_of
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.oracle.reference import ball_work
from conformance.sampling.layouts import draw_memory
from conformance.sampling.strategies import (
    DTYPES,
    HUGE,
    TINY,
    Draw,
    draw_dtype,
    draw_option,
    numpy_dtype,
    roundings,
    seeds,
)
from specification.dtypes import HALF, compute_dtype_name

SHAPES = ((7,), (3, 5), (2, 3, 4), (1,), (40,))
ADAM_OPTIONS: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.1, 1.0, 1e-3, 0.03),
    "beta_1": (0.9, 0.9, 0.5, 0.0, 0.99),
    "beta_2": (0.999, 0.999, 0.98, 0.9, 0.0),
    "eps": (1e-8, 1e-8, 1e-3, 0.1),
    "weight_decay": (0.0, 0.0, 0.3, 0.01),
    "decoupled": (True, False),
}
"""Options, each drawn from its choices."""
SGD_OPTIONS: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.1, 1.0, 1e-3, 0.03),
    "momentum": (0.9, 0.9, 0.5, 0.0),
    "nesterov": (False, True),
    "weight_decay": (0.0, 0.0, 0.3, 0.01),
}
"""Options of gradient descent, likewise."""
STEPS = (0, 0, 1, 2, 9, 99, 999)
LATE = (9_999, 99_999, 999_999)
SMALL, LARGE = 1e-7, {"float16": 1e4, "bfloat16": 1e14, "float32": 1e14, "float64": 1e120}
"""Gradients as small as eps; gradients whose squares the compute dtype still holds."""
VANISHING = {"float32": 1e-21, "float64": 1e-160}
"""By compute dtype: gradients whose squares are too small for normal numbers."""


@st.composite
def adam_cases(
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
    dtype = draw_dtype(draw, dtypes, declaration, ball_work("adam_step", gradients=False, rows=count))
    wide, kind = compute_dtype_name(dtype), draw(st.sampled_from(kinds))
    given = {
        name: draw_option(draw, "adam_step", name, choices, declaration)
        for name, choices in (ADAM_OPTIONS | (options or {})).items()
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
    rounding = roundings(declaration, dtype)
    case = Case("adam_step", dtype, inputs, {"step": step, **given}, special=special, rounding=rounding)
    return draw_memory(draw, case, declaration)


@st.composite
def sgd_cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("usual", "usual", "tiny", "huge", "zeros"),
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[int, ...], ...] = SHAPES,
    options: dict[str, tuple[Any, ...]] | None = None,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """As `adam_cases`; "zeros": no velocity yet."""
    shape = draw(st.sampled_from(plans))
    count = prod(shape)
    dtype = draw_dtype(draw, dtypes, declaration, ball_work("sgd_step", gradients=False, rows=count))
    wide, kind = compute_dtype_name(dtype), draw(st.sampled_from(kinds))
    given = {
        name: draw_option(draw, "sgd_step", name, choices, declaration)
        for name, choices in (SGD_OPTIONS | (options or {})).items()
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
    return draw_memory(draw, Case("sgd_step", dtype, inputs, given, special=special), declaration)


LIST_SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
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


@st.composite
def clip_cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("usual", "usual", "small", "uneven", "zeros"),
    limits: tuple[float, ...] = LIMITS,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[tuple[int, ...], ...], ...] = LIST_SHAPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """kinds: of gradients, the choices. limits: the choices, in units of the norm. plans: the shapes of the arrays.

    "small": the norm is far below 1. "uneven": one array is far larger than the others. special: NaN and infinity.
    """
    shapes = draw(st.sampled_from(plans))
    dtype = draw_dtype(
        draw, dtypes, declaration, ball_work("clip_by_global_norm", gradients=False, rows=sum(map(prod, shapes)))
    )
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
    return draw_memory(draw, Case("clip_by_global_norm", dtype, inputs, {"limit": limit}, special=special), declaration)
