"""Layer norm and its named variants, defined (rules NORM-1 to NORM-8; Ba, Kiros and Hinton, arXiv 1607.06450).

All of them normalise over the trailing axes that `weight` names: for x [..., *N], weight and bias are [*N]. x has one
of the dtypes float16, bfloat16, float32, float64; weight and bias have the same one or the wider one used inside.
Statistics and the affine step are kept in float32, or in float64 for float64, and rounded once, at the end.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from reference_numpy.dtypes import widen
from reference_numpy.layer_norm_steps import affine, deviations, multiplier, reference_layer_norm
from reference_numpy.tape import operation
from specification import checks

__all__ = ["layer_norm", "rms_norm", "standard_deviation_norm"]


@operation
@np.errstate(all="ignore")  # NaN and infinity are legal inputs, and say so in the output
def layer_norm(
    x: Float[np.ndarray, "..."],
    weight: Float[np.ndarray, "*N"],
    bias: Float[np.ndarray, "*N"] | None,
    *,
    eps: float = 1e-5,
) -> Float[np.ndarray, "..."]:
    """Compute (x - mean) / sqrt(variance + eps) * weight + bias, with the biased two-pass variance (NORM-1).

    A constant row gives bias exactly, also when it has one element (NORM-3). NaN or infinity in a row makes that row
    non-finite and no other (NORM-5).

    Args:
        x: [..., *N], in float16, bfloat16, float32 or float64.
        weight: [*N], the trailing axes that are normalised over, in the dtype of x or the wider one used inside.
        bias: As weight, or None.
        eps: At least 2**-126.

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.norm(x, weight, bias, eps)
    return reference_layer_norm(x, weight, bias, eps).astype(x.dtype)


@operation
@np.errstate(all="ignore")
def rms_norm(
    x: Float[np.ndarray, "..."], weight: Float[np.ndarray, "*N"], *, eps: float, plus_one: bool = False
) -> Float[np.ndarray, "..."]:
    """Compute x / sqrt(mean(x^2) + eps) * weight (NORM-7; Zhang and Sennrich, arXiv 1910.07467).

    Args:
        x, weight, eps: As in `layer_norm`.
        plus_one: Whether 1 + weight stands in the place of weight, as in Gemma (NORM-8).

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    axes = checks.rms_norm(x, weight, eps, plus_one)
    wide = widen(x)
    square = np.mean(wide**2, axis=axes, keepdims=True)
    normalized = wide / np.sqrt(square + float(eps))
    return affine(normalized, multiplier(weight, plus_one), None).astype(x.dtype)


@operation
@np.errstate(all="ignore")
def standard_deviation_norm(
    x: Float[np.ndarray, "..."],
    weight: Float[np.ndarray, "*N"],
    bias: Float[np.ndarray, "*N"] | None,
    *,
    eps: float,
) -> Float[np.ndarray, "..."]:
    """Compute (x - mean) / (deviation + eps) * weight + bias, with the unbiased deviation (NORM-7).

    The variance is divided by n - 1, and eps stands outside the root: this is what The Annotated Transformer computes
    under the name of layer norm.

    Args:
        x, weight, bias, eps: As in `layer_norm`; weight has two elements at least.

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    axes = checks.standard_deviation_norm(x, weight, bias, eps)
    deviation = deviations(widen(x), axes)
    variance = np.sum(deviation**2, axis=axes, keepdims=True) / (weight.size - 1)
    normalized = deviation / (np.sqrt(variance) + float(eps))
    return affine(normalized, weight, bias).astype(x.dtype)
