"""Right layer norm and its variants in NumPy with their gradients, in steps that can be replaced one by one.

    layer_norm               n = (x - mean) / sqrt(variance + eps)
    rms_norm                 n = x / sqrt(mean(x^2) + eps)
    standard_deviation_norm  n = (x - mean) / (sqrt(sum((x - mean)^2) / (count - 1)) + eps)
    output = n * weight + bias

Everything in between is in the compute dtype; rows are the trailing axes that `weight` names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults.right_numpy import Function, rounded, widen

# --- the steps --------------------------------------------------------------------------------------------------------


def row_axes(x: Any, weight: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim - weight.ndim, x.ndim))


def centered(x: Any, axes: tuple[int, ...]) -> Any:
    """x - mean, by way of the row's first element, and the rest of the mean once more."""
    first = x[(..., *(slice(0, 1) for _ in axes))]
    deviation = x - (first + (x - first).mean(axis=axes, keepdims=True))
    return deviation - deviation.mean(axis=axes, keepdims=True)


def as_it_is(x: Any, axes: tuple[int, ...]) -> Any:
    return x


def mean_square(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The mean of the squared deviations; `x` is what they were taken from."""
    return (deviation**2).mean(axis=axes, keepdims=True)


def unbiased(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Their sum by one less than their number."""
    count = np.prod([x.shape[axis] for axis in axes])
    return (deviation**2).sum(axis=axes, keepdims=True) / x.dtype.type(count - 1)


def root(square: Any, eps: float) -> Any:
    """1 / sqrt(square + eps)."""
    return 1 / np.sqrt(square + square.dtype.type(eps))


def deviation_and_eps(square: Any, eps: float) -> Any:
    """1 / (sqrt(square) + eps)."""
    return 1 / (np.sqrt(square) + square.dtype.type(eps))


def multiplier(weight: Any, plus_one: bool, widen: Function) -> Any:
    """The weight, or 1 + weight, in the compute dtype."""
    return 1 + widen(weight) if plus_one else widen(weight)


def affine(normalized: Any, weight: Any, bias: Any) -> Any:
    output = normalized * weight
    return output if bias is None else output + bias


def x_bar(deviation: Any, normalized: Any, reciprocal: Any, inner: Any, axes: tuple[int, ...], eps: float) -> Any:
    """r * (n_bar - mean(n_bar) - n * mean(n_bar * n)) with n_bar = `inner`."""
    inner = centered(inner, axes)
    return reciprocal * (inner - normalized * (inner * normalized).mean(axis=axes, keepdims=True))


def rms_x_bar(deviation: Any, normalized: Any, reciprocal: Any, inner: Any, axes: tuple[int, ...], eps: float) -> Any:
    """r * (n_bar - n * mean(n_bar * n))."""
    return reciprocal * (inner - normalized * (inner * normalized).mean(axis=axes, keepdims=True))


def spread_x_bar(
    deviation: Any, normalized: Any, reciprocal: Any, inner: Any, axes: tuple[int, ...], eps: float
) -> Any:
    """r * (n_bar - mean(n_bar)) - d * sum(n_bar * d) * r^2 / ((count - 1) * deviation), the last 0 in constant rows."""
    spread = np.sqrt(unbiased(deviation, deviation, axes))
    count = np.prod([deviation.shape[axis] for axis in axes])
    sums = (inner * deviation).sum(axis=axes, keepdims=True) * reciprocal / deviation.dtype.type(count - 1)
    return reciprocal * (centered(inner, axes) - deviation / np.where(spread == 0, 1, spread) * sums)


def weight_bar(cotangent: Any, normalized: Any, x: Any, rows: tuple[int, ...]) -> Any:
    """sum over rows of y_bar * n."""
    return (cotangent * normalized).sum(axis=rows)


def bias_bar(cotangent: Any, rows: tuple[int, ...]) -> Any:
    return cotangent.sum(axis=rows)


class Steps(NamedTuple):
    """Every step under the name by which a fault replaces it."""

    widen: Function = widen
    axes: Function = row_axes
    centered: Function = centered
    square: Function = mean_square
    reciprocal: Function = root
    multiplier: Function = multiplier
    affine: Function = affine
    rounded: Function = rounded
    x_bar: Function = x_bar
    weight_bar: Function = weight_bar
    bias_bar: Function = bias_bar
    default_eps: float = 1e-5


# --- the operations ---------------------------------------------------------------------------------------------------


def parts(s: Steps, x: Any, weight: Any, eps: float) -> tuple[Any, Any, Any]:
    """(deviation, normalized, reciprocal)."""
    axes, wide = s.axes(x, weight), s.widen(x)
    deviation = s.centered(wide, axes)
    reciprocal = s.reciprocal(s.square(deviation, wide, axes), eps)
    return deviation, deviation * reciprocal, reciprocal


def norm(s: Steps, x: Any, weight: Any, bias: Any, eps: float | None, plus_one: bool = False) -> Any:
    _, normalized, _ = parts(s, x, weight, s.default_eps if eps is None else eps)
    return s.rounded(s.affine(normalized, s.multiplier(weight, plus_one, s.widen), s.widen(bias)), x.dtype)


def gradients(
    s: Steps, x: Any, weight: Any, bias: Any, cotangent: Any, eps: float | None, plus_one: bool = False
) -> dict[str, Any]:
    """By name."""
    eps = s.default_eps if eps is None else eps
    deviation, normalized, reciprocal = parts(s, x, weight, eps)
    bar, rows = s.widen(cotangent), tuple(range(x.ndim - weight.ndim))
    inner = bar * s.multiplier(weight, plus_one, s.widen)
    found = {
        "x": s.x_bar(deviation, normalized, reciprocal, inner, s.axes(x, weight), eps).astype(x.dtype),
        "weight": s.weight_bar(bar, normalized, s.widen(x), rows).astype(weight.dtype),
    }
    return found if bias is None else found | {"bias": s.bias_bar(bar, rows).astype(bias.dtype)}


def with_bias_by(s: Steps, forward_only: bool = False) -> Function:
    """`layer_norm` or `standard_deviation_norm` in these steps."""

    @np.errstate(all="ignore")
    def vjp(x: Any, weight: Any, bias: Any, cotangent: Any, *, eps: float | None = None) -> dict[str, Any]:
        return gradients(s, x, weight, bias, cotangent, eps)

    @np.errstate(all="ignore")
    def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float | None = None) -> Any:
        return norm(s, x, weight, bias, eps)

    return layer_norm if forward_only else declare(vjp=vjp)(layer_norm)


def rms_norm_by(s: Steps, forward: Steps | None = None, forward_only: bool = False) -> Function:
    """`rms_norm` in these steps. forward: those of the forward pass, where it has others."""

    @np.errstate(all="ignore")
    def vjp(x: Any, weight: Any, cotangent: Any, *, eps: float, plus_one: bool = False) -> dict[str, Any]:
        return gradients(s, x, weight, None, cotangent, eps, plus_one)

    @np.errstate(all="ignore")
    def rms_norm(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
        return norm(forward or s, x, weight, None, eps, plus_one)

    return rms_norm if forward_only else declare(vjp=vjp)(rms_norm)


LAYER = Steps()
RMS = Steps(centered=as_it_is, x_bar=rms_x_bar)
DEVIATION = Steps(square=unbiased, reciprocal=deviation_and_eps, x_bar=spread_x_bar)
layer_norm = with_bias_by(LAYER)
layer_norm_forward = with_bias_by(LAYER, forward_only=True)
rms_norm = rms_norm_by(RMS)
rms_norm_forward = rms_norm_by(RMS, forward_only=True)
standard_deviation_norm = with_bias_by(DEVIATION)
standard_deviation_norm_forward = with_bias_by(DEVIATION, forward_only=True)
