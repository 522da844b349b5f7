"""Gradients of the operations in `layer_norm.py`, by hand (NORM-6).

With y = n * weight + bias and n = d * r, where d is x - mean and r the reciprocal of the spread, and a bar for
"gradient with respect to" (sums over the rows for the parameters, means over the normalised axes for x):

    weight_bar = sum(y_bar * n)     bias_bar = sum(y_bar)     n_bar = y_bar * weight
    layer_norm               x_bar = r * (n_bar - mean(n_bar) - n * mean(n_bar * n))
    rms_norm                 x_bar = r * (n_bar - n * mean(n_bar * n))
    standard_deviation_norm  x_bar = r * (n_bar - mean(n_bar)) - d * (sum(n_bar * d) * r^2 / ((count - 1) * deviation))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from reference_numpy.dtypes import widen
from reference_numpy.layer_norm_steps import deviations, multiplier
from reference_numpy.tape import gradient_of
from specification import checks
from specification.dtypes import dtype_name

__all__ = ["NormGradients", "layer_norm_vjp", "rms_norm_vjp", "standard_deviation_norm_vjp"]


class NormGradients(NamedTuple):
    """Gradients in the shapes and dtypes of the arguments; None for an argument that was not given."""

    x: Any
    weight: Any
    bias: Any


@gradient_of("x", "weight", "bias")
@np.errstate(all="ignore")
def layer_norm_vjp(
    x: Float[np.ndarray, "..."],
    weight: Float[np.ndarray, "*N"],
    bias: Float[np.ndarray, "*N"] | None,
    cotangent: Float[np.ndarray, "..."],
    *,
    eps: float = 1e-5,
) -> NormGradients:
    """Compute the gradients of x, weight and bias (NORM-6).

    Args:
        x, weight, bias: As in `layer_norm`.
        cotangent: Gradient with respect to the result of `layer_norm`, [..., *N], in its dtype.
        eps: As in `layer_norm`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `layer_norm`, and for a cotangent in another shape or dtype than its result.
    """
    axes = checks.norm(x, weight, bias, eps)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    deviation = deviations(widen(x), axes)
    reciprocal = 1 / np.sqrt(np.mean(deviation**2, axis=axes, keepdims=True) + float(eps))
    normalized = deviation * reciprocal
    inner = widen(cotangent) * widen(weight)
    # The mean of n is 0, so n_bar - mean(n_bar) may stand for n_bar in the last mean, and a large common part is lost.
    centered = deviations(inner, axes)
    x_gradient = reciprocal * (centered - normalized * np.mean(centered * normalized, axis=axes, keepdims=True))
    return rounded(x, weight, bias, x_gradient, normalized, cotangent)


@gradient_of("x", "weight", "bias")
@np.errstate(all="ignore")
def rms_norm_vjp(
    x: Float[np.ndarray, "..."],
    weight: Float[np.ndarray, "*N"],
    cotangent: Float[np.ndarray, "..."],
    *,
    eps: float,
    plus_one: bool = False,
) -> NormGradients:
    """Compute the gradients of x and weight (NORM-6, NORM-8).

    Args:
        x, weight: As in `rms_norm`.
        cotangent: Gradient with respect to the result of `rms_norm`, [..., *N], in its dtype.
        eps, plus_one: As in `rms_norm`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `rms_norm`, and for a cotangent in another shape or dtype than its result.
    """
    axes = checks.rms_norm(x, weight, eps, plus_one)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    wide = widen(x)
    reciprocal = 1 / np.sqrt(np.mean(wide**2, axis=axes, keepdims=True) + float(eps))
    normalized = wide * reciprocal
    inner = widen(cotangent) * multiplier(weight, plus_one)
    x_gradient = reciprocal * (inner - normalized * np.mean(inner * normalized, axis=axes, keepdims=True))
    return rounded(x, weight, None, x_gradient, normalized, cotangent)


@gradient_of("x", "weight", "bias")
@np.errstate(all="ignore")
def standard_deviation_norm_vjp(
    x: Float[np.ndarray, "..."],
    weight: Float[np.ndarray, "*N"],
    bias: Float[np.ndarray, "*N"] | None,
    cotangent: Float[np.ndarray, "..."],
    *,
    eps: float,
) -> NormGradients:
    """Compute the gradients of x, weight and bias (NORM-6).

    In a constant row the deviation has no slope of its own, but the quotient has: x_bar = (n_bar - mean(n_bar)) / eps.

    Args:
        x, weight, bias: As in `standard_deviation_norm`.
        cotangent: Gradient with respect to the result of `standard_deviation_norm`, [..., *N], in its dtype.
        eps: As in `standard_deviation_norm`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `standard_deviation_norm`, and for a cotangent in another shape or dtype than its
            result.
    """
    axes = checks.standard_deviation_norm(x, weight, bias, eps)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    deviation = deviations(widen(x), axes)
    spread = np.sqrt(np.sum(deviation**2, axis=axes, keepdims=True) / (weight.size - 1))
    reciprocal = 1 / (spread + float(eps))
    inner = widen(cotangent) * widen(weight)
    slope = np.sum(inner * deviation, axis=axes, keepdims=True) * reciprocal / (weight.size - 1)
    through_spread = deviation / np.where(spread == 0, 1, spread) * slope
    x_gradient = reciprocal * (deviations(inner, axes) - through_spread)
    return rounded(x, weight, bias, x_gradient, deviation * reciprocal, cotangent)


def rounded(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    x_gradient: np.ndarray,
    normalized: np.ndarray,
    cotangent: np.ndarray,
) -> NormGradients:
    """All gradients in the arguments' dtypes; the parameters' are summed over every row."""
    rows = tuple(range(x.ndim - weight.ndim))
    weight_gradient = np.sum(widen(cotangent) * normalized, axis=rows).astype(weight.dtype)
    bias_gradient = None if bias is None else np.sum(widen(cotangent), axis=rows).astype(bias.dtype)
    return NormGradients(x_gradient.astype(x.dtype), weight_gradient, bias_gradient)
