"""The feed-forward network (FFN-1) and SiLU (ACT-1) in PyTorch, as `reference_numpy/feed_forward.py` defines them."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float

from specification import FeedForward, GatedFeedForward, checks
from torch_impl.attention_steps import dropout_factor
from torch_impl.dtypes import Context, GradientByHand, widen
from torch_impl.multi_head_attention import linear

__all__ = ["feed_forward", "gated_feed_forward", "silu"]


def relu(x: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """max(x, 0). NaN stays NaN; the slope is 0 at 0 and, other than `torch.relu`'s, at NaN."""
    return Relu.apply(x)


class Relu(GradientByHand):
    """max(x, 0), with a slope by hand. `torch.where` with x > 0 would compute the same in ten times the time."""

    @staticmethod
    def forward(x: torch.Tensor) -> Any:
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Context, cotangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(cotangent, torch.nan_to_num(x.detach()), 0)


def gelu(x: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """x * Phi(x), with the normal distribution function."""
    return x * normal_distribution(x)


def normal_distribution(x: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """Phi(x) = erfc(-x / sqrt(2)) / 2, which keeps its digits for negative x, where 1 + erf(x / sqrt(2)) cancels."""
    return 0.5 * torch.special.erfc(-x / math.sqrt(2))


def gelu_tanh(x: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def finite_size(x: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """|x|, and the largest number for infinity, which no 0 makes a NaN. NaN stays NaN; the slope at 0 is 1."""
    size = torch.where(x >= 0, x, -x)
    return torch.where(torch.isinf(size), torch.finfo(x.dtype).max, size)


def silu_steps(x: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """x * sigmoid(x) = max(x, 0) - |x| * sigmoid(-|x|), in the dtype of x."""
    return Silu.apply(x)


class Silu(GradientByHand):
    """The same, in few arrays: what stands between two products should stay in a cache."""

    @staticmethod
    def forward(x: torch.Tensor) -> Any:
        size = torch.clamp(torch.abs(x), max=torch.finfo(x.dtype).max)
        root = (-0.5 * size).exp_()
        size.mul_(root).mul_(root).div_((root * root).add_(1))
        return torch.clamp(x, min=0).sub_(size)

    @staticmethod
    def backward(ctx: Context, cotangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return cotangent * silu_slope(x)


def silu_slope(x: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """sigmoid(x) + x * sigmoid(x) * sigmoid(-x), which for x of 0 or more is 1 less the slope at -x."""
    size = finite_size(x)
    root = torch.exp(-0.5 * size)
    total = 1 + root * root
    below = root * (1 - size / total) * root / total
    return torch.where(x >= 0, 1 - below, below)


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu_steps}
"""By the name that a configuration has (FFN-1, FFN-2)."""


def feed_forward(
    parameters: FeedForward,
    x: Float[torch.Tensor, "... E"],
    *,
    activation: str = "relu",
    dropout_keep: Bool[torch.Tensor, "... F"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[torch.Tensor, "... E_out"]:
    """Compute outer(activation(inner(x))), each a linear projection, for every position on its own (FFN-1).

    A weight is the transpose of `torch.nn.Linear`'s.

    Args:
        parameters: Two projections in the dtype of x, each with a weight [in, out].
        x: [..., E].
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        dropout_keep: [..., F], True = keep the activation. The caller draws it; only some dialects have it.
        dropout_rate: In [0, 1). Activations that are kept are divided by 1 - rate.

    Returns:
        A new array [..., E_out] in the dtype of x, to which each projection and the activation round.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.feed_forward(parameters, x, activation, dropout_keep, dropout_rate)
    hidden = ACTIVATIONS[activation](widen(linear(parameters.inner, x)))
    if dropout_keep is not None:
        hidden = hidden * dropout_factor(dropout_keep, dropout_rate, hidden.dtype)
    return linear(parameters.outer, hidden.to(x.dtype))


def gated_feed_forward(
    parameters: GatedFeedForward,
    x: Float[torch.Tensor, "... E"],
    *,
    activation: str = "silu",
    dropout_keep: Bool[torch.Tensor, "... F"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[torch.Tensor, "... E_out"]:
    """Compute outer(activation(gate(x)) * inner(x)) for every position on its own (FFN-2; Shazeer, arXiv 2002.05202).

    A weight is the transpose of `torch.nn.Linear`'s.

    Args:
        parameters: Three projections in the dtype of x, each with a weight [in, out].
        x: [..., E].
        activation: "silu", "gelu", "gelu_tanh" or "relu".
        dropout_keep: [..., F], True = keep the product. The caller draws it.
        dropout_rate: In [0, 1). Products that are kept are divided by 1 - rate.

    Returns:
        A new array [..., E_out] in the dtype of x, to which each projection and the product round.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.gated_feed_forward(parameters, x, activation, dropout_keep, dropout_rate)
    gate = ACTIVATIONS[activation](widen(linear(parameters.gate, x)))
    hidden = gate * widen(linear(parameters.inner, x))
    if dropout_keep is not None:
        hidden = hidden * dropout_factor(dropout_keep, dropout_rate, hidden.dtype)
    return linear(parameters.outer, hidden.to(x.dtype))


def silu(x: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """Compute x * sigmoid(x) for every element, and round once (ACT-1).

    Args:
        x: An array of any shape, in float16, bfloat16, float32 or float64.

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: x is no array, or has another dtype.
    """
    checks.silu(x)
    return silu_steps(widen(x)).to(x.dtype)
