"""Gradients of layer norm, and its variants, gone wrong (NORM-6, NORM-7, NORM-8)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.selftest.faults import right_norms as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.norms import by_one_less, no_nan, one_plus, plain_mean, rounded_first
from conformance.selftest.faults.right_norms import DEVIATION, LAYER, RMS, rms_norm_by, with_bias_by
from conformance.selftest.faults.right_numpy import Function


def gradient(name: str, **steps: Any) -> Fault:
    return Fault("NORM-6", name, "layer_norm", with_bias_by(LAYER._replace(**steps)), right.layer_norm)


def rms(name: str, rule: str = "NORM-7", **steps: Any) -> Fault:
    function = rms_norm_by(RMS._replace(**steps), forward_only=True)
    return Fault(rule, name, "rms_norm", function, right.rms_norm_forward)


def deviation(name: str, **steps: Any) -> Fault:
    function = with_bias_by(DEVIATION._replace(**steps), forward_only=True)
    return Fault("NORM-7", name, "standard_deviation_norm", function, right.standard_deviation_norm_forward)


# --- gradients --------------------------------------------------------------------------------------------------------


def without_mean(d: Any, n: Any, r: Any, inner: Any, axes: tuple[int, ...], eps: float) -> Any:
    return r * (inner - n * (inner * n).mean(axis=axes, keepdims=True))


def without_projection(d: Any, n: Any, r: Any, inner: Any, axes: tuple[int, ...], eps: float) -> Any:
    return r * right.centered(inner, axes)


def by_one_less_again(d: Any, n: Any, r: Any, inner: Any, axes: tuple[int, ...], eps: float) -> Any:
    """Sums divided by n - 1."""
    count = np.prod([n.shape[axis] for axis in axes])
    inner = right.centered(inner, axes)
    return r * (inner - n * ((inner * n).sum(axis=axes, keepdims=True) / n.dtype.type(max(count - 1, 1))))


def by_x(cotangent: Any, normalized: Any, x: Any, rows: tuple[int, ...]) -> Any:
    return (cotangent * x).sum(axis=rows)


def mean_of_rows(cotangent: Any, rows: tuple[int, ...]) -> Any:
    return cotangent.mean(axis=rows)


def one_row(cotangent: Any, normalized: Any, x: Any, rows: tuple[int, ...]) -> Any:
    """Rows of the first leading index only."""
    return (cotangent * normalized)[:1].sum(axis=rows)


def half_sums(cotangent: Any, rows: tuple[int, ...]) -> Any:
    """Added up in bfloat16."""
    return cotangent.sum(axis=rows).astype(ml_dtypes.bfloat16).astype(cotangent.dtype)


GRADIENTS = (
    gradient("no mean in the gradient of x", x_bar=without_mean),
    gradient("no gradient through the variance", x_bar=without_projection),
    gradient("gradient of x by n - 1", x_bar=by_one_less_again),
    gradient("weight's gradient by x", weight_bar=by_x),
    gradient("weight's gradient of the first rows", weight_bar=one_row),
    gradient("bias's gradient averaged", bias_bar=mean_of_rows),
    gradient("bias's gradient in bfloat16", bias_bar=half_sums),
)  # fmt: skip

# --- variants ---------------------------------------------------------------------------------------------------------


def nan_in_constant_rows(d: Any, n: Any, r: Any, inner: Any, axes: tuple[int, ...], eps: float) -> Any:
    """0 / 0 where the deviation is 0."""
    found = right.spread_x_bar(d, n, r, inner, axes, eps)
    return np.where((d == 0).all(axis=axes, keepdims=True), np.nan, found)


def one_in_16_bits(weight: Any, plus_one: bool, widen: Function) -> Any:
    """1 + weight in the dtype of a 16-bit weight."""
    narrow = weight.dtype if weight.dtype.itemsize == 2 else np.float64
    return widen((1 + widen(weight)).astype(narrow)).astype(widen(weight).dtype) if plus_one else widen(weight)


def one_left_out(weight: Any, plus_one: bool, widen: Function) -> Any:
    return widen(weight)


def one_twice(weight: Any, plus_one: bool, widen: Function) -> Any:
    return widen(weight) + 2 * plus_one


def weight_first(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    """1 + weight multiplies x, which is normalised then."""
    if not plus_one:
        return right.rms_norm_forward(x, weight, eps=eps)
    scaled = right.widen(x) * (1 + right.widen(weight))
    return right.rms_norm_forward(scaled, np.ones_like(right.widen(weight)), eps=eps).astype(x.dtype)


VARIANTS = (
    rms("1 added in 16 bits", "NORM-8", multiplier=one_in_16_bits),
    rms("1 left out", "NORM-8", multiplier=one_left_out),
    rms("1 added twice", "NORM-8", multiplier=one_twice),
    Fault("NORM-8", "1 + weight before the norm", "rms_norm", weight_first, right.rms_norm_forward),
    Fault("NORM-8", "1 left out in the gradient of x", "rms_norm",
          rms_norm_by(RMS._replace(multiplier=one_left_out), RMS), right.rms_norm),
    rms("mean taken off", centered=right.centered),
    rms("eps outside the root", reciprocal=right.deviation_and_eps),
    rms("mean square by n - 1", square=by_one_less),
    rms("1 + weight", affine=one_plus),
    rms("rounded to bfloat16 before the weight", affine=rounded_first(ml_dtypes.bfloat16)),
    rms("NaN swallowed in rms_norm", rule="NORM-5", affine=no_nan),
    Fault("NORM-6", "no gradient through the mean square", "rms_norm",
          rms_norm_by(RMS._replace(x_bar=lambda d, n, r, inner, axes, eps: r * inner)), right.rms_norm),
    deviation("biased deviation", square=right.mean_square),
    deviation("eps inside the root", reciprocal=right.root),
    deviation("constant rows not exact", centered=plain_mean),
    Fault("NORM-7", "NaN in the gradient of constant rows", "standard_deviation_norm",
          with_bias_by(DEVIATION._replace(x_bar=nan_in_constant_rows)), right.standard_deviation_norm),
    Fault("NORM-7", "gradient of the biased deviation", "standard_deviation_norm",
          with_bias_by(DEVIATION._replace(x_bar=right.x_bar)), right.standard_deviation_norm),
)  # fmt: skip

FAULTS = (*GRADIENTS, *VARIANTS)
