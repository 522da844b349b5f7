"""Layer norm and its named variants in PyTorch (rules NORM-1 to NORM-8), as `reference_numpy/layer_norm.py` has them.

For x [..., *N], weight and bias are [*N].
"""

from __future__ import annotations

import torch
from jaxtyping import Float

from specification import checks
from torch_impl.dtypes import number, widen
from torch_impl.engines import choice
from torch_impl.engines.fused_norm import fused_layer_norm
from torch_impl.layer_norm_steps import affine, deviations, multiplier, reference_layer_norm

__all__ = ["layer_norm", "rms_norm", "standard_deviation_norm"]


def layer_norm(
    x: Float[torch.Tensor, "..."],
    weight: Float[torch.Tensor, "*N"],
    bias: Float[torch.Tensor, "*N"] | None,
    *,
    eps: float = 1e-5,
    engine: str = "auto",
) -> Float[torch.Tensor, "..."]:
    """Compute (x - mean) / sqrt(variance + eps) * weight + bias, with the biased two-pass variance (NORM-1).

    Args:
        x: [..., *N], in float16, bfloat16, float32 or float64.
        weight: [*N], the trailing axes that are normalised over, in the dtype of x or the wider one used inside.
        bias: As weight, or None.
        eps: At least 2**-126.
        engine: "reference" is `reference_layer_norm`, "fused" PyTorch's own kernel, which reads x once, "auto" the
            fastest of those that take the call (`explain_layer_norm_engine`).

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.norm(x, weight, bias, eps)
    if choice.layer_norm_engine_for(engine, x, weight, bias, eps).engine == "fused":
        return fused_layer_norm(widen(x), widen(weight), widen(bias), float(eps)).to(x.dtype)
    return reference_layer_norm(x, weight, bias, eps).to(x.dtype)


def rms_norm(
    x: Float[torch.Tensor, "..."], weight: Float[torch.Tensor, "*N"], *, eps: float, plus_one: bool = False
) -> Float[torch.Tensor, "..."]:
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
    square = torch.mean(wide**2, dim=axes, keepdim=True)
    normalized = wide / torch.sqrt(square + number(eps))
    return affine(normalized, multiplier(weight, plus_one), None).to(x.dtype)


def standard_deviation_norm(
    x: Float[torch.Tensor, "..."],
    weight: Float[torch.Tensor, "*N"],
    bias: Float[torch.Tensor, "*N"] | None,
    *,
    eps: float,
) -> Float[torch.Tensor, "..."]:
    """Compute (x - mean) / (deviation + eps) * weight + bias, with the unbiased deviation (NORM-7).

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
    variance = torch.sum(deviation**2, dim=axes, keepdim=True) / (weight.numel() - 1)
    # The root's slope at 0 is infinite, and 0 * inf = NaN: a constant row takes the root of 1, and no gradient from it.
    constant = variance == 0
    spread = torch.where(constant, 0, torch.sqrt(torch.where(constant, 1, variance)))
    normalized = deviation / (spread + number(eps))
    return affine(normalized, weight, bias).to(x.dtype)
