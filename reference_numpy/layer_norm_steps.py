"""The steps of layer norm: deviations from the mean, and the affine step (NORM-1 to NORM-5, NORM-8)."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from reference_numpy.dtypes import widen


def deviations(x: Float[np.ndarray, "..."], axes: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """x - mean, taken twice (NORM-3, NORM-4).

    The first center is reached by way of the row's first element: in a constant row every x - first is exactly 0, where
    sum(x) / n need not give x back. The second subtraction takes off the rounding error of that center, which is large
    when the first element lies far from the others.
    """
    corner: Any = (..., *(slice(0, 1) for _ in axes))
    first = x[corner]
    center = first + np.mean(x - first, axis=axes, keepdims=True)
    deviation = x - center
    return deviation - np.mean(deviation, axis=axes, keepdims=True)


def multiplier(weight: Float[np.ndarray, "*N"], plus_one: bool) -> Float[np.ndarray, "*N"]:
    """Weight, or 1 + weight, in the compute dtype: a 16-bit sum would lose the digits of a small weight (NORM-8)."""
    return 1 + widen(weight) if plus_one else widen(weight)


def affine(
    normalized: Float[np.ndarray, "..."], weight: Float[np.ndarray, "*N"], bias: Float[np.ndarray, "*N"] | None
) -> Float[np.ndarray, "..."]:
    """normalized * weight + bias, unrounded."""
    output = normalized * widen(weight)
    return output if bias is None else output + widen(bias)


def reference_layer_norm(
    x: Float[np.ndarray, "..."],
    weight: Float[np.ndarray, "*N"],
    bias: Float[np.ndarray, "*N"] | None,
    eps: float | Float[np.ndarray, ""],
) -> Float[np.ndarray, "..."]:
    """Compute `layer_norm` for arguments that it has checked, without its last rounding."""
    axes = tuple(range(-weight.ndim, 0))
    deviation = deviations(widen(x), axes)
    variance = np.mean(deviation**2, axis=axes, keepdims=True)
    normalized = deviation / np.sqrt(variance + float(eps))
    return affine(normalized, weight, bias)
