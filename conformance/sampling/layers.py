"""Strategies of the layers around attention: norms, feed-forward networks and SiLU."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.cases.case import Case, numpy_dtype
from conformance.cases.declaration import EVERYTHING, Declaration, fit_width, roundings
from conformance.cases.facts import operation_facts
from conformance.oracle.reference import ball_work
from conformance.sampling.strategies import (
    DTYPES,
    EXACTLY,
    HUGE,
    MANY_KEYS,
    TINY,
    Draw,
    cotangent,
    draw_dtype,
    draw_memory,
    draw_option,
    draw_row_cotangents,
    edges,
    judged_dtypes,
    require_some,
    reset_lacking,
    seeds,
    select_cotangents,
)
from reference_numpy.feed_forward import ACTIVATIONS as ACTIVATION_FUNCTIONS
from specification.configuration import CHOICES
from specification.dtypes import compute_dtype_name

NormShape = tuple[tuple[int, ...], int]
"""The shape of x, and how many of its last axes are normalised."""
NORM_SHAPES: tuple[NormShape, ...] = (
    *(((3, 7), 1), ((2, 5, 12), 1), ((4, 3, 5), 2), ((5, 70), 1), ((2, 3, 1), 1), ((3, 257), 1)),
)

VECTOR_WIDTHS: tuple[NormShape, ...] = tuple(((3, width), 1) for width in (4, 8, 16, 32, 64, 96, 128, 256))
"""Rows of norms that kernels read in vectors of 16 bytes."""
NORM_NUMBERS = ("usual", "usual", "usual", "by row", "zeros", "small", "large")
EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3, 0.5)
WIDE_ROW = 256
LARGE = {"float16": 2.0**15, "bfloat16": 2.0**40, "float32": 2.0**40, "float64": 2.0**330}
"""Squares leave 16 bits, but the cube of a reciprocal, which the gradient of rsqrt has, stays in range."""


@st.composite
def norm_cases(
    draw: st.DrawFn,
    operation: str = "layer_norm",
    means: tuple[float, ...] = (0.0, 0.0, 2.0, -30.0),
    spreads: tuple[float, ...] = (1.0, 1.0, 0.03, 40.0),
    default_eps: bool = False,
    gradients: bool = True,
    focus: tuple[str, ...] = (),
    plans: tuple[NormShape, ...] = NORM_SHAPES,
    dtypes: tuple[str, ...] = DTYPES,
    far: bool = False,
    epsilons: tuple[float, ...] = (),
    plus_one: tuple[bool, ...] = (False, True),
    declaration: Declaration = EVERYTHING,
) -> Case:
    """plans: the shapes of x to draw from, each with the number of axes that are normalised.

    far: the means are, which in wide rows only float64 resolves; there they grow with the width, as bounds do.
    epsilons: the choices, instead of the usual ones, of which those that hide a wide row's variance are left out.
    plus_one: the choices for rms_norm. A weight to which 1 is added is small in half the cases, as trained ones are.
    """
    assume(set(focus) <= declaration.features)
    shapes = [s for s in plans if operation != "standard_deviation_norm" or s[0][-1] > 1]
    shape, axes = draw(st.sampled_from(require_some(s for s in shapes if s[1] == 1 or "axes" in declaration)))
    row = prod(shape[-axes:-1])
    shape = (*shape[:-1], fit_width(shape[-1] * row, "norm_width", declaration, unit=row) // row)
    assume(prod(shape[-axes:]) >= operation_facts(operation).least_width)
    sizes = {"rows": prod(shape[:-axes]), "width": prod(shape[-axes:])}
    cheap = ball_work(operation, gradients=gradients, **sizes) <= EXACTLY * (4 if far else 1)
    able = require_some(d for d in judged_dtypes(dtypes, declaration) if cheap or d != "float64")
    wide = far and sizes["width"] > WIDE_ROW and "float64" in able
    dtype = draw(st.sampled_from(("float64",) if wide else able))
    d, scale = Draw(draw(seeds), dtype), draw(st.sampled_from(spreads))
    names = shape[-axes:]
    wide_weights = compute_dtype_name(dtype) if "wide_weights" in declaration else dtype
    companion = draw(st.sampled_from((dtype, wide_weights)))
    kinds = [kind for kind in NORM_NUMBERS if not (far and kind == "zeros")]  # zeros beside a far mean are a variance
    x, weight, kind = d.numbers(*shape) * scale, d.numbers(*names), draw(st.sampled_from(kinds))
    if shape[-1] > MANY_KEYS:
        standing_out = edges(shape[-1], d)
        x[..., standing_out] *= max(3, np.sqrt(shape[-1] / 64))  # together as much of the variance as all others
        x[..., -2:] += np.sign(x[..., -2:]) * np.sqrt(shape[-1] / 4) * scale
        weight[..., standing_out] *= 3
    x = x + draw(st.sampled_from(means)) * scale * (sizes["width"] / 16 if wide else 1)
    rows = (*shape[:-axes], *(1 for _ in names))
    if kind == "by row":
        x = x * d.choice((1e-3, 0.1, 1.0, 1e2), *rows)
    elif kind == "zeros":
        x, weight = x * d.booleans(*shape, share=0.8), weight * d.booleans(*names, share=0.7)
    elif kind == "small":  # the variance is about eps
        x = x / scale * d.choice((1e-4, 1e-3, 3e-3, 0.03), *rows)
    elif kind == "large":  # squares do not fit into 16 bits, and barely into float32
        x = x / (scale * (1 + np.max(np.abs(x), initial=1.0) / scale)) * LARGE[dtype]
    options: dict[str, Any] = {}
    if operation == "rms_norm":
        options["plus_one"] = draw_option(draw, operation, "plus_one", plus_one, declaration)
        weight = weight * draw(st.sampled_from((0.01, 1.0))) if options["plus_one"] else weight
    inputs = {"x": d.cast(x), "weight": d.cast(weight, companion)}
    biased = operation != "rms_norm" and (draw(st.integers(0, 4)) > 0 or "unbiased" not in declaration)
    if biased and "bias" not in declaration.lacking and "biased" in declaration:
        inputs["bias"] = d.normal(*names, dtype=companion)
    if operation != "layer_norm" or epsilons or (not default_eps and draw(st.booleans())):
        usual = [eps for eps in EPSILONS if shape[-1] <= MANY_KEYS or eps <= scale**2]
        options["eps"] = draw(st.sampled_from(epsilons or usual))
    options = reset_lacking(operation, options, declaration)
    cotangents = (
        select_cotangents({"output": draw_row_cotangents(draw, d, shape, axes)}, declaration) if gradients else {}
    )
    rounding = roundings(declaration, dtype)
    return draw_memory(draw, Case(operation, dtype, inputs, options, cotangents, rounding=rounding), declaration)


def norm_shapes(rows: int, width: int) -> tuple[NormShape, ...]:
    """Shapes of x with so many rows and numbers in a row: rows in one axis or two, a row in one axis or, less often,
    in two.
    """
    leading = [(rows,), *((part, rows // part) for part in (2, 3) if rows % part == 0 and rows > part)]
    inner = [*[(width,)] * 4, *((part, width // part) for part in (2, 3) if width % part == 0 and width > part)]
    return tuple(((*front, *back), len(back)) for front in leading for back in inner if len(back) == 1 or back[1] > 1)


@st.composite
def constant_rows(
    draw: st.DrawFn,
    operation: str = "layer_norm",
    gradients: bool = False,
    focus: tuple[str, ...] = (),
    declaration: Declaration = EVERYTHING,
) -> Case:
    """focus: features that the subject must have."""
    case = draw(norm_cases(operation, gradients=gradients, focus=focus, declaration=declaration))
    d = Draw(draw(seeds), case.dtype)
    x = case.inputs["x"]
    axes = tuple(range(-case.inputs["weight"].ndim, 0))
    rows = d.normal(*(1 if axis - x.ndim in axes else n for axis, n in enumerate(x.shape)), scale=100.0, mean=300.0)
    return replace(case, inputs=case.inputs | {"x": np.array(np.broadcast_to(rows, x.shape))})


@st.composite
def outlying_rows(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> Case:
    """The first element of every long row lies far from the others, which lie together (NORM-4)."""
    long = tuple(plan for plan in NORM_SHAPES if plan[0][-1] >= 70)
    case = draw(norm_cases(gradients=False, plans=long, dtypes=("float32", "float64"), declaration=declaration))
    x = np.array(case.inputs["x"])
    x[..., 0] *= draw(st.sampled_from((1e2, 1e4)))
    return replace(case, inputs=case.inputs | {"x": x})


@st.composite
def spoiled_rows(
    draw: st.DrawFn, operation: str, declaration: Declaration = EVERYTHING
) -> tuple[Case, Case, np.ndarray, np.ndarray]:
    """(the case with NaN or infinity somewhere, the clean case, elements that must be non-finite, spoiled rows).

    Infinity in `rms_norm` leaves the others of its row finite: they are divided by it.
    """
    case = draw(norm_cases(operation, gradients=False, declaration=declaration))
    x = np.array(case.inputs["x"])
    axes = tuple(range(-case.inputs["weight"].ndim, 0))
    place = tuple(draw(st.integers(0, n - 1)) for n in x.shape)
    x[place] = draw(st.sampled_from((np.nan, np.inf, -np.inf)))
    bad = ~np.isfinite(x.astype(float))
    rows = np.broadcast_to(bad.any(axis=axes, keepdims=True), x.shape)
    reached = bad if operation == "rms_norm" and np.isinf(x[place]) else rows
    return replace(case, inputs=case.inputs | {"x": x}, special=True), case, reached, rows


ACTIVATIONS = CHOICES["activation"]
NETWORKS = (((2, 3, 4), 10, 5), ((5, 6), 7, 6), ((2, 9, 24), 40, 17))


@st.composite
def feed_forward_cases(
    draw: st.DrawFn,
    operation: str = "feed_forward",
    activations: tuple[str, ...] = ACTIVATIONS,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[tuple[int, ...], int, int], ...] = NETWORKS,
    declaration: Declaration = EVERYTHING,
) -> Case:
    """plans: the shapes of x to draw from, each with the inner and the outer width."""
    shape, inner, outer = draw(st.sampled_from(plans))
    shape = (*shape[:-1], fit_width(shape[-1], "model_width", declaration))
    inner, outer = fit_width(inner, "inner_width", declaration), fit_width(outer, "model_width", declaration)
    sizes = {"rows": prod(shape[:-1]), "E": shape[-1], "F": inner, "out": outer}
    dtype = draw_dtype(draw, dtypes, declaration, ball_work(operation, gradients=True, **sizes))
    d, E = Draw(draw(seeds), dtype), shape[-1]
    size = draw(st.sampled_from((1.0, 4.0)))
    inputs = {"x": d.normal(*shape, scale=size), "inner.weight": d.normal(E, inner, scale=E**-0.5)}
    inputs["outer.weight"] = d.normal(inner, outer, scale=inner**-0.5)
    gated = operation == "gated_feed_forward"
    if gated:
        inputs["gate.weight"] = d.normal(E, inner, scale=E**-0.5)
    if draw(st.booleans()):
        inputs |= {"inner.bias": d.normal(inner), "outer.bias": d.normal(outer)}
        inputs |= {"gate.bias": d.normal(inner)} if gated else {}
    options: dict[str, Any] = {"activation": draw_option(draw, operation, "activation", activations, declaration)}
    if draw(st.integers(0, 2)) == 0 and "dropout" in declaration:
        options |= {"dropout_rate": 0.25, "dropout_keep": d.booleans(*shape[:-1], inner, share=0.75)}
    cotangents = select_cotangents({"output": draw_row_cotangents(draw, d, (*shape[:-1], outer))}, declaration)
    rounding = roundings(declaration, dtype)
    return draw_memory(draw, Case(operation, dtype, inputs, options, cotangents, rounding=rounding), declaration)


ROUNDED_ALIKE = {
    "silu": ((1.6015625, 1.4296875, 1.3515625), (1.34375, 1.703125, 1.6796875)),
    "gelu": ((1.5, 1.390625, 1.515625), (1.5, 0.8046875, 1.421875)),
    "gelu_tanh": ((1.5, 1.390625, 1.515625), (1.671875, 0.7265625, 1.265625)),
}
"""Of bfloat16, x and its weights in gate and inner projection, found by trying all. Both projections, the activation
and the product round up in the first, down in the second: with the activation's rounding, by more than the bound."""


@st.composite
def gates_rounded_alike(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> Case:
    """Two columns whose errors add up in their difference, which is about 0 and adds no rounding of its own."""
    assume(2 % declaration.width_multiple == 0)
    dtype = draw(st.sampled_from(judged_dtypes(("bfloat16",), declaration)))
    name = draw_option(draw, "gated_feed_forward", "activation", ROUNDED_ALIKE, declaration)
    d, (x, gate, inner) = Draw(0, dtype), np.array(ROUNDED_ALIKE[name]).T
    inner = inner * 2.0 ** draw(st.integers(-3, 3))
    hidden = ACTIVATION_FUNCTIONS[name](x * gate) * x * inner
    outer = draw(st.sampled_from((-1.0, 1.0))) * np.array([[1.0], [-hidden[0] / hidden[1]]])
    inputs = {
        "x": np.tile(x, (draw(st.integers(1, 3)), 1)),
        "gate.weight": np.diag(gate),
        "inner.weight": np.diag(inner),
    }
    inputs = {name: d.cast(array) for name, array in (inputs | {"outer.weight": outer}).items()}
    case = Case("gated_feed_forward", dtype, inputs, {"activation": name}, rounding=roundings(declaration, dtype))
    return draw_memory(draw, case, declaration)


SILU_SHAPES = ((7,), (3, 5), (2, 3, 4), (1,), (40,))
SILU_NUMBERS = ("usual", "usual", "wide", "last normal", "zeros", "tiny", "huge")
LAST_NORMAL = {"float16": -15.0, "bfloat16": -86.0, "float32": -86.0, "float64": -709.0}
"""Up to 6 below, x exp(x) becomes smaller than the smallest normal number; of float16, which rounds it, soon after."""


@st.composite
def silu_cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = SILU_NUMBERS,
    special: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    plans: tuple[tuple[int, ...], ...] = SILU_SHAPES,
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
