"""The steps of layer norm: deviations from the mean, and the affine step (NORM-1 to NORM-5, NORM-8)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float

from torch_impl.dtypes import number, widen


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
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, tuple[int, ...]], output: torch.Tensor) -> None:
        _, ctx.axes = inputs

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, None]:
        return deviations(cotangent, ctx.axes), None


def multiplier(weight: Float[torch.Tensor, "*N"], plus_one: bool) -> Float[torch.Tensor, "*N"]:
    """Weight, or 1 + weight, in the compute dtype: a 16-bit sum would lose the digits of a small weight (NORM-8)."""
    return 1 + widen(weight) if plus_one else widen(weight)


def affine(
    normalized: Float[torch.Tensor, "..."], weight: Float[torch.Tensor, "*N"], bias: Float[torch.Tensor, "*N"] | None
) -> Float[torch.Tensor, "..."]:
    """normalized * weight + bias, unrounded."""
    output = normalized * widen(weight)
    return output if bias is None else output + widen(bias)


def reference_layer_norm(
    x: Float[torch.Tensor, "..."],
    weight: Float[torch.Tensor, "*N"],
    bias: Float[torch.Tensor, "*N"] | None,
    eps: float | Float[torch.Tensor, ""],
) -> Float[torch.Tensor, "..."]:
    """Compute `layer_norm` for arguments that it has checked, without its last rounding."""
    axes = tuple(range(-weight.ndim, 0))
    deviation = deviations(widen(x), axes)
    variance = torch.mean(deviation**2, dim=axes, keepdim=True)
    normalized = deviation / torch.sqrt(variance + number(eps))
    return affine(normalized, weight, bias)
