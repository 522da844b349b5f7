"""Layer norm and its named variants in PyTorch (rules NORM-1 to NORM-7), as `reference_numpy/layer_norm.py` has them.

For x [..., *N], weight and bias are [*N].
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float

from specification import checks
from torch_impl import engines
from torch_impl.attention import number, widen
from torch_impl.fused_norm import fused_layer_norm


def deviations(x: Float[torch.Tensor, "..."], axes: tuple[int, ...]) -> Float[torch.Tensor, "..."]:
    """x - mean, taken twice, the first time by way of the row's first element (NORM-3, NORM-4)."""
    return Deviations.apply(x, axes)


class Deviations(torch.autograd.Function):
    """`deviations`. As a matrix, identity minus mean is symmetric: the gradient is the deviations of the cotangent.

    Autograd would add up the cotangents of `first` instead, which sum to 0 but for rounding.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any, axes: tuple[int, ...]) -> Any:
        first = x[(..., *(slice(0, 1) for _ in axes))]
        center = first + torch.mean(x - first, dim=axes, keepdim=True)
        deviation = x - center
        return deviation - torch.mean(deviation, dim=axes, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.axes = inputs

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> tuple[Any, None]:
        return deviations(cotangent, ctx.axes), None


def layer_norm(
    x: Float[torch.Tensor, "..."],
    weight: Float[torch.Tensor, "*N"],
    bias: Float[torch.Tensor, "*N"] | None,
    *,
    eps: float = 1e-5,
    engine: str = "auto",
) -> Float[torch.Tensor, "..."]:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the biased two-pass variance (NORM-1).

    engine: "reference" is `literal_layer_norm`, "fused" PyTorch's own kernel, which reads x once, "auto" the fastest of
    those that can take the call (`explain_layer_norm_engine`).
    """
    checks.norm(x, weight, bias, eps)
    wide = (widen(x), widen(weight), widen(bias))
    if engines.layer_norm_engine_for(engine, x, weight, bias, eps).engine == "fused":
        return fused_layer_norm(literal_layer_norm, *wide, float(eps)).to(x.dtype)
    return literal_layer_norm(*wide, eps).to(x.dtype)


def literal_layer_norm(x: Any, weight: Any, bias: Any, eps: Any) -> torch.Tensor:
    """As the definition has it, unrounded."""
    axes = tuple(range(-weight.ndim, 0))
    deviation = deviations(x, axes)
    variance = torch.mean(deviation**2, dim=axes, keepdim=True)
    normalized = deviation / torch.sqrt(variance + number(eps))
    return affine(normalized, weight, bias)


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


def affine(
    normalized: Float[torch.Tensor, "..."], weight: Float[torch.Tensor, "*N"], bias: Float[torch.Tensor, "*N"] | None
) -> Float[torch.Tensor, "..."]:
    """normalized * weight + bias, unrounded."""
    output = normalized * widen(weight)
    return output if bias is None else output + widen(bias)
