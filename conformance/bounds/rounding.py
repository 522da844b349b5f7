"""Roundings that a subject declares: of attention weights, and of the sides of matrix products.

A format has a unit roundoff u~ and an absolute error t~ for numbers too small for it: half a subnormal step in float16,
a flush to 0 in bfloat16 and in TF32, which has float32's range and float16's digits. Whoever rounds x' to it holds
x'(1 + r) + t with |r| <= u~ and |t| <= t~. Nothing is promised for numbers beyond the format's range.

Products. Both sides of every matrix product are rounded, and the sum is kept in float32 (float64 for float64): to
first order 2 u~ of the sum of absolute terms. A scale may be put on a side before it is rounded; its own rounding is
relative and does not mind, but t~ then counts by 1 / |scale|. A side that is an input, or was rounded to the inputs'
dtype, is held as it is if the format has every number of that dtype, and no scale is put on it. Where it is not, the
gradient of the rounded side is rounded to the same format by automatic differentiation, which differentiates the
rounding as if it were none.

Weights. P_j is held as P_j (1 + r_j) wherever it is multiplied: with values, with cotangents and with their products,
in whichever order it is rounded and divided by the row's sum. If the sum is that of the unrounded exponentials the
output is off by sum_j P_j r_j f_j v_j (f the dropout factor), if it is that of the rounded ones by
sum_j P_j r_j (f_j v_j - o). The larger of the two is taken; a common factor of the r_j does not cancel in the first.
The gradients of scores are rounded before they are multiplied with keys and queries. Automatic differentiation rounds
the gradient of the weights to the format too, and a backward pass that takes rowsum(O_bar * O) for the mean may take
the output as it was returned, in its own dtype.

Shared heads. n query heads share a key head. A function that repeats keys and values in the inputs' 16 bits rounds the
gradient g_h of each of these heads to them: an error of u~ |g_h| + t~. If the sum is kept in float32, that is all. If
it is kept in 16 bits too, n - 1 additions are rounded. The last rounding is that of the result. Every partial sum is at
most sum |g_h|, so the others add (1 + u~)^(n - 2) - 1 times it.

Normalised rows. The row n of `rms_norm` is rounded before the weight multiplies it. Automatic differentiation rounds
the gradient that comes back through this rounding, O_bar * weight. If the weight has 16 bits, it also rounds each row's
term of the weight's gradient, O_bar * n. Nothing inside the norm is rounded, nor is the sum over rows.
"""

from __future__ import annotations

import numpy as np

from conformance.bounds.arithmetic import Approx, Format, Precision

DIGITS = {"float16": ("float16", "tf32"), "bfloat16": ("bfloat16", "tf32"), "float32": (), "float64": ()}
"""For every dtype the formats that hold each of its numbers."""


def round_approx(x: Approx, form: Format | None, scale: float = 1.0) -> Approx:
    """x in the format, before or after it is multiplied by the scale; as it is without a format."""
    if form is None:
        return x
    smallest = form.tiny / min(1.0, abs(scale) or 1.0)
    return Approx(x.value, x.error + form.unit * x.size + smallest)


def partial_sums(added: Approx, size: np.ndarray, n: int, form: Format | None) -> Approx:
    """A sum of n terms, of which every partial sum is rounded to the format. size: the sum of the terms' sizes."""
    if form is None:
        return added
    between = np.expm1((n - 2) * np.log1p(form.unit))
    return Approx(added.value, added.error + between * size + (n - 1) * form.tiny)


def holds_products(p: Precision) -> bool:
    """Whether arrays in the inputs' dtype are sides of products as they are."""
    return p.products is None or p.products.name in DIGITS[p.dtype]


def side(x: Approx, p: Precision) -> Approx:
    """A side of a matrix product that is an input, or was rounded to the inputs' dtype."""
    return x if holds_products(p) else round_approx(x, p.products)


def scaled_side(x: Approx, p: Precision, scale: float) -> Approx:
    """A side on which a scale, or its square root, may be put before it is rounded."""
    return round_approx(x, p.products, scale)


def side_gradient(x: Approx, p: Precision) -> Approx:
    """The gradient of a side, which passes through the side's rounding."""
    return x if holds_products(p) else round_approx(x, p.products)


def weight_format(p: Precision) -> Format | None:
    """What becomes of a weight on its way into a matrix product: one rounding, or two to different formats."""
    if p.weights is None or p.products is None or p.weights == p.products:
        return p.weights or p.products
    unit = (1 + p.weights.unit) * (1 + p.products.unit) - 1
    return Format(f"{p.weights.name}, {p.products.name}", unit, p.weights.tiny + p.products.tiny)
