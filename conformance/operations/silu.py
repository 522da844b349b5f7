"""SiLU: x * sigmoid(x), element by element."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import bound
from conformance.bounds.arithmetic import EXP, Approx, Precision, exact, multiply
from conformance.cases.arguments import gradient_name
from conformance.cases.axes import Described, leading
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.operation import Operation, Rows, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.common import rows_of_layers
from conformance.sampling.layouts import with_memory
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import ROWS
from conformance.sampling.strategies import (
    DTYPES,
    EXACTLY,
    HUGE,
    TINY,
    Draw,
    cotangent,
    judged,
    numpy_dtype,
    seeds,
    some,
    wanted,
)

NAME = "silu"
PLAN = Plan(values={"rows": ROWS}, typical={"rows": (3, 130, 65537)})


def work(passes: int, gradients: bool, *, rows: int) -> int:
    return rows * (110 if gradients else 50)


def shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["x"].shape


def dimensions(case: Case) -> dict[str, int]:
    return {"rows": case.inputs["x"].size}


def axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["x"], 0)
    return sizes, {"x": rows, "-> output": rows}, {}


SHAPES = ((7,), (3, 5), (2, 3, 4), (1,), (40,))
ELEMENTS = ("usual", "usual", "wide", "last normal", "zeros", "tiny", "huge")
LAST_NORMAL = {"float16": -15.0, "bfloat16": -86.0, "float32": -86.0, "float64": -709.0}
"""Up to 6 below, x exp(x) becomes smaller than the smallest normal number; of float16, which rounds it, soon after."""


@st.composite
def cases(
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
    cheap = work(3, True, rows=count) <= EXACTLY
    dtype = draw(st.sampled_from(some(d for d in judged(dtypes, declaration) if cheap or d != "float64")))
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
    cotangents = wanted({"output": cotangent(draw, d, (count,), 0).reshape(shape)}, declaration)
    return with_memory(draw, Case(NAME, dtype, inputs, {}, cotangents, special=special), declaration)


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return drawn(plans=((row["rows"],),))

    return [
        agreement("ACT-1", "silu", NAME, drawn(), weight=2.0),
        agreement("ACT-1", "the last normal numbers", NAME, drawn(("last normal",))),
        agreement("ACT-1", "NaN and infinity in silu", NAME, drawn(special=True), weight=0.5),
        agreement("ACT-1", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    yield array.refusal("ACT-1", "x of integers", TypeError, NAME, {"x": np.array([1, -2])})


def bounds(case: Case, p: Precision) -> dict[str, Approx]:
    """x sigmoid(x) = max(x, 0) - t with t = a sigmoid(-a) and a = |x|; all errors below are in units of u.

    An exponential exp(-a) is off by E = 2 EXP + 2 a + 1, relatively: by EXP when it is taken at once, by 2 EXP + 1 as
    the square of exp(-a / 2), and by 2 a more as exp2(-a log2(e)), whose constant and product are rounded.

    Output. t is a product of a, exp(-a) and 1 / (1 + exp(-a)). exp(-a) is at most half of that sum, which is off by
    E / 2 + 1, so that t is off by 3/2 E + 4 of itself: two products and a quotient. For x >= 0 the result x - t rounds
    once more. Taken as x / (1 + exp(-x)), or as x times that reciprocal, it rounds 3 times, and E of the exponential
    moves it by t sigmoid(a) E, which is less than t E.

    Slope. With s = sigmoid(-a) it is s - a s (1 - s) for x < 0, and 1 less that for x >= 0. Differentiation of any of
    these forms adds up products of s, a s, a s^2 and a s (1 - s), at most s (1 + 2 a) in all. Each is off by 3 E + 9 at
    most: three exponentials, and the roundings of sums, products and quotients, with those of the cotangent; adding
    them up and multiplying what comes of it by the cotangent rounds 4 times. Where 1 - sigmoid(x) is formed for x >= 0
    it is off by 2, and x times as much counts. From exp(-x) < u / 2 on sigmoid(x) is 1 and the difference 0: what is
    lost then, x s, falls with x and is less than that.

    What is too small for a normal number may be lost. The root of exp(-a) is normal as long as the result is, so that
    nothing lost is a factor of anything large: a result and its t, and 4 terms of a gradient, before they are
    multiplied by the cotangent or after it.
    """
    x = np.asarray(case.inputs["x"], float)
    size = np.minimum(np.abs(x), 2.0**12)  # there the exponential is 0
    root = np.exp(-size / 2)
    below = root * root / (1 + root * root)
    lost = size * root * root / (1 + root * root)
    exponential = 2 * EXP + 2 * size + 1
    value = np.where(x >= 0, x, 0) - lost
    error = p.inner * (4 * np.abs(value) + (1.5 * exponential + 4) * lost) + 2 * p.inner_tiny
    results = {"output": Approx(value, error)}
    if not case.cotangents:
        return results
    slope = root * (1 - size / (1 + root * root)) * root / (1 + root * root)
    slope = np.where(x >= 0, 1 - slope, slope)
    complement = np.where(x >= 0, 2 * np.minimum(size, np.log(2 / p.inner)), 0)
    own = (
        p.inner * ((3 * exponential + 13) * below * (1 + 2 * size) + complement + 2 * np.abs(slope)) + 4 * p.inner_tiny
    )
    gradient = multiply(exact(case.cotangents["output"]), Approx(slope, own), p, 2)
    return results | {gradient_name("x"): Approx(gradient.value, gradient.error + 4 * p.inner_tiny)}


def relaxed(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow a sigmoid too small to be normal.

    sigmoid(x), or exp(x), may be such a number while x sigmoid(x) is still normal. It is then flushed to 0, or taken as
    1 / (1 + exp(-x)) with an exponential that overflows. Either way sigmoid(x) is off by at most the smallest normal
    number t of the compute dtype, and x sigmoid(x) by |x| t. The slope sigmoid(x) + x sigmoid(x) sigmoid(-x) is off by
    (1 + |x|) t, and so is the gradient, times the cotangent.
    """
    tiny, size = Precision.of(case.dtype).inner_tiny, np.abs(np.asarray(case.inputs["x"], float))
    more = {"output": size * tiny}
    if case.cotangents:
        more[gradient_name("x")] = (1 + size) * tiny * np.abs(np.asarray(case.cotangents["output"], float))
    with np.errstate(invalid="ignore"):
        return {name: array + more.get(name, 0.0) for name, array in bound(case).items()}


OPERATION = Operation(
    name=NAME,
    rules={"": "ACT-1"},
    arguments=("x",),
    differentiated=("x",),
    rows=Rows("x", lambda case: 0),
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
)
