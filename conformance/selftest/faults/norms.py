"""Layer norm gone wrong (NORM-1 to NORM-5)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.selftest.faults import right_norms as right
from conformance.selftest.faults.dtypes import truncated
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_norms import LAYER, with_bias_by
from conformance.selftest.faults.right_numpy import Function


def layer(rule: str, name: str, **steps: Any) -> Fault:
    function = with_bias_by(LAYER._replace(**steps), forward_only=True)
    return Fault(rule, name, "layer_norm", function, right.layer_norm_forward)


# --- statistics -------------------------------------------------------------------------------------------------------


def plain_mean(x: Any, axes: tuple[int, ...]) -> Any:
    return x - x.mean(axis=axes, keepdims=True)


def shifted_by_the_first(x: Any, axes: tuple[int, ...]) -> Any:
    """Exact in constant rows, but every element keeps what it lost to a first one that lies far away."""
    shifted = x - x[(..., *(slice(0, 1) for _ in axes))]
    return shifted - shifted.mean(axis=axes, keepdims=True)


def half_mean(x: Any, axes: tuple[int, ...]) -> Any:
    """A mean in bfloat16."""
    return x - x.mean(axis=axes, keepdims=True).astype(ml_dtypes.bfloat16).astype(x.dtype)


def of_squares(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """E[x^2] - E[x]^2."""
    return np.maximum((x**2).mean(axis=axes, keepdims=True) - x.mean(axis=axes, keepdims=True) ** 2, 0)


def by_one_less(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    count = max(np.prod([x.shape[axis] for axis in axes]) - 1, 1)
    return (deviation**2).sum(axis=axes, keepdims=True) / x.dtype.type(count)


def over_the_batch(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """One variance for all rows."""
    return np.broadcast_to((deviation**2).mean(keepdims=True), (*x.shape[: -len(axes)], *(1 for _ in axes)))


def first_256(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Elements from 256 on are not added up."""
    return (deviation[..., :256] ** 2).sum(axis=axes, keepdims=True) / x.dtype.type(
        np.prod([x.shape[axis] for axis in axes])
    )


def whole_lanes(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """A tail that fills no lane of 8 is not added up, in rows of one lane or more."""
    width = x.shape[-1] // 8 * 8 or x.shape[-1]
    count = np.prod([x.shape[axis] for axis in axes])
    return (deviation[..., :width] ** 2).sum(axis=axes, keepdims=True) / x.dtype.type(count)


def last_axis(x: Any, weight: Any) -> tuple[int, ...]:
    return (x.ndim - 1,)


def half_square(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The variance in float16, which overflows and underflows."""
    found = right.mean_square(deviation, x, axes)
    return found.astype(np.float16).astype(found.dtype) if found.dtype == np.float32 else found


def absolute(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The square of the mean absolute deviation."""
    return np.abs(deviation).mean(axis=axes, keepdims=True) ** 2


# --- eps and the affine step ------------------------------------------------------------------------------------------


def eps_in_both(square: Any, eps: float) -> Any:
    return right.root(square + square.dtype.type(eps), eps)


def no_less_than_eps(square: Any, eps: float) -> Any:
    """eps as a lower bound in place of a summand."""
    return right.root(np.maximum(square, square.dtype.type(eps)), 0)


def coarse_root(square: Any, eps: float) -> Any:
    """1 / sqrt to 12 bits in float32: an estimate without the step of Newton's that belongs to it."""
    return truncated(right.root(square, eps), 11)


def one_plus(normalized: Any, weight: Any, bias: Any) -> Any:
    """1 + weight, as some models store it."""
    return right.affine(normalized, 1 + weight, bias)


def bias_first(normalized: Any, weight: Any, bias: Any) -> Any:
    return right.affine(normalized if bias is None else normalized + bias, weight, None)


def rounded_first(dtype: Any) -> Function:
    """n is rounded before the affine step; float64 stays."""

    def affine(normalized: Any, weight: Any, bias: Any) -> Any:
        narrow = normalized if normalized.dtype == np.float64 else normalized.astype(dtype).astype(normalized.dtype)
        return right.affine(narrow, weight, bias)

    return affine


def no_nan(normalized: Any, weight: Any, bias: Any) -> Any:
    return right.affine(np.nan_to_num(normalized), weight, bias)


def over_all_rows(output: Any, dtype: Any) -> Any:
    """NaN anywhere makes everything NaN."""
    return (np.full_like(output, np.nan) if np.isnan(output).any() else output).astype(dtype)


def clipped(output: Any, dtype: Any) -> Any:
    """Within +-1e4, by min and max that lose NaN."""
    return np.fmin(np.fmax(output, -1e4), 1e4).astype(dtype)


FAULTS = (
    layer("NORM-1", "unbiased variance", square=by_one_less),
    layer("NORM-1", "eps outside the root", reciprocal=right.deviation_and_eps),
    layer("NORM-1", "eps twice", reciprocal=eps_in_both),
    layer("NORM-1", "eps as a lower bound", reciprocal=no_less_than_eps),
    layer("NORM-1", "another default eps", default_eps=1e-6),
    layer("NORM-1", "1 / sqrt to 12 bits", reciprocal=coarse_root),
    layer("NORM-1", "one variance for all rows", square=over_the_batch),
    layer("NORM-1", "elements from 256 on left out", square=first_256),
    layer("NORM-1", "tail of a lane left out", square=whole_lanes),
    layer("NORM-1", "last axis only", axes=last_axis),
    layer("NORM-1", "mean absolute deviation", square=absolute),
    layer("NORM-1", "1 + weight", affine=one_plus),
    layer("NORM-1", "bias before the weight", affine=bias_first),
    layer("NORM-2", "rounded to bfloat16 before the affine step", affine=rounded_first(ml_dtypes.bfloat16)),
    layer("NORM-2", "rounded to float16 before the affine step", affine=rounded_first(np.float16)),
    layer("NORM-2", "mean in bfloat16", centered=half_mean),
    layer("NORM-2", "variance in float16", square=half_square),
    layer("NORM-2", "result wider than x", rounded=lambda output, dtype: output),
    layer("NORM-3", "deviations from a rounded mean", centered=plain_mean),
    layer("NORM-4", "mean of squares less square of mean", square=of_squares),
    layer("NORM-4", "elements left shifted by the first", centered=shifted_by_the_first),
    layer("NORM-5", "NaN swallowed", affine=no_nan),
    layer("NORM-5", "NaN clipped", rounded=clipped),
    layer("NORM-5", "NaN in one row for all", rounded=over_all_rows),
)  # fmt: skip
