"""Layer norm and its named variants in PyTorch (rules NORM-1 to NORM-7), as `reference_numpy/layer_norm.py` has them.

For x [..., *N], weight and bias are [*N].
"""

from __future__ import annotations

import torch
from jaxtyping import Float

from specification import checks
from torch_impl.dtypes import number, widen
from torch_impl.engines import choice
from torch_impl.engines.fused_norm import fused_layer_norm
from torch_impl.layer_norm_steps import affine, deviations, reference_layer_norm


def layer_norm(
    x: Float[torch.Tensor, "..."],
    weight: Float[torch.Tensor, "*N"],
    bias: Float[torch.Tensor, "*N"] | None,
    *,
    eps: float = 1e-5,
    engine: str = "auto",
) -> Float[torch.Tensor, "..."]:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the biased two-pass variance (NORM-1).

    engine: "reference" is `reference_layer_norm`, "fused" PyTorch's own kernel, which reads x once, "auto" the fastest
    of those that can take the call (`explain_layer_norm_engine`).
    """
    checks.norm(x, weight, bias, eps)
    if choice.layer_norm_engine_for(engine, x, weight, bias, eps).engine == "fused":
        return fused_layer_norm(widen(x), widen(weight), widen(bias), float(eps)).to(x.dtype)
    return reference_layer_norm(x, weight, bias, eps).to(x.dtype)


def rms_norm(
    x: Float[torch.Tensor, "..."], weight: Float[torch.Tensor, "*N"], *, eps: float
) -> Float[torch.Tensor, "..."]:
    """x / sqrt(mean(x^2) + eps) * weight (NORM-7)."""
    axes = checks.norm(x, weight, None, eps)
    wide = widen(x)
    square = torch.mean(wide**2, dim=axes, keepdim=True)
    normalized = wide / torch.sqrt(square + number(eps))
    return affine(normalized, weight, None).to(x.dtype)


def standard_deviation_norm(
    x: Float[torch.Tensor, "..."],
    weight: Float[torch.Tensor, "*N"],
    bias: Float[torch.Tensor, "*N"] | None,
    *,
    eps: float,
) -> Float[torch.Tensor, "..."]:
    """(x - mean) / (deviation + eps) * weight + bias, with the unbiased deviation (NORM-7)."""
    axes = checks.standard_deviation_norm(x, weight, bias, eps)
    deviation = deviations(widen(x), axes)
    variance = torch.sum(deviation**2, dim=axes, keepdim=True) / (weight.numel() - 1)
    # The root's slope at 0 is infinite, and 0 * inf = NaN: a constant row takes the root of 1, and no gradient from it.
    constant = variance == 0
    spread = torch.where(constant, 0, torch.sqrt(torch.where(constant, 1, variance)))
    normalized = deviation / (spread + number(eps))
    return affine(normalized, weight, bias).to(x.dtype)
