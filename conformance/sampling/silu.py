"""Cases of SiLU: numbers of every size, and those where its exponential is about to vanish."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.oracle.work import ball_work
from conformance.sampling.layouts import draw_memory
from conformance.sampling.strategies import (
    DTYPES,
    HUGE,
    TINY,
    Draw,
    cotangent,
    draw_dtype,
    numpy_dtype,
    seeds,
    select_cotangents,
)

SHAPES = ((7,), (3, 5), (2, 3, 4), (1,), (40,))
ELEMENTS = ("usual", "usual", "wide", "last normal", "zeros", "tiny", "huge")
LAST_NORMAL = {"float16": -15.0, "bfloat16": -86.0, "float32": -86.0, "float64": -709.0}
"""Up to 6 below, x exp(x) becomes smaller than the smallest normal number; of float16, which rounds it, soon after."""


@st.composite
def silu_cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ELEMENTS,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[int, ...], ...] = SHAPES,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """kinds: of numbers, the choices. special: NaN and both infinities stand among them. plans: the shapes of x."""
    shape = draw(st.sampled_from(plans))
    count = prod(shape)
    dtype = draw_dtype(draw, dtypes, declaration, ball_work("silu", gradients=True, rows=count))
    d, kind = Draw(draw(seeds), dtype), draw(st.sampled_from(kinds))
    x = d.numbers(count) * draw(st.sampled_from((1.0, 4.0)))
    if kind == "wide":
        x = x * 10
    elif kind == "last normal":
        x = np.where(d.booleans(count, share=0.8), LAST_NORMAL[dtype] - 6 * d.rng.random(count), x)
    elif kind == "zeros":
        x = x * d.booleans(count, share=0.7)
    elif kind in ("tiny", "huge"):
        x = x * (TINY if kind == "tiny" else HUGE)[dtype]
    if special:
        x = np.where(d.booleans(count, share=0.7), d.choice((np.nan, np.inf, -np.inf), count), x)
    inputs = {"x": (x.astype(numpy_dtype(dtype)) if special else d.cast(x)).reshape(shape)}
    cotangents = select_cotangents({"output": cotangent(draw, d, (count,), 0).reshape(shape)}, declaration)
    return draw_memory(draw, Case("silu", dtype, inputs, {}, cotangents, special=special), declaration)
