"""Multi-head attention in PyTorch (rules MHA-1, MHA-2; "Attention Is All You Need", section 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float

from specification import Linear, MultiHeadAttention, checks
from specification.masks import Mask
from torch_impl.attention import attention
from torch_impl.dtypes import Context, GradientByHand, product, widen

__all__ = ["multi_head_attention"]


def linear(parameters: Linear, x: Float[torch.Tensor, "... I"]) -> Float[torch.Tensor, "... O"]:
    """x @ weight + bias, rounded once to the dtype of x (MHA-1)."""
    output = Product.apply(widen(x), widen(parameters.weight))
    if parameters.bias is not None:
        output = output + widen(parameters.bias)
    return output.to(x.dtype)


class Product(GradientByHand):
    """x @ weight. Autocast narrows neither this product nor, as it would with `@`, those of its gradient."""

    @staticmethod
    def forward(x: Any, weight: Any) -> Any:
        return product(x, weight)

    @staticmethod
    def backward(ctx: Context, cotangent: torch.Tensor) -> tuple[Any, Any]:
        x, weight = ctx.saved_tensors
        rows, flat = cotangent[None].flatten(0, -2), x[None].flatten(0, -2)
        return Product.apply(cotangent, weight.mT), Product.apply(flat.mT, rows)


def join_heads(projections: Linear | Sequence[Linear]) -> Linear:
    """One projection out of per-head projections: their columns side by side, in head order (MHA-2)."""
    if isinstance(projections, Linear):
        return projections
    checks.join_heads(projections)
    weight = torch.cat([head.weight for head in projections], dim=1)
    if projections[0].bias is None:
        return Linear(weight)
    return Linear(weight, torch.cat([head.bias for head in projections]))


def fused(parameters: MultiHeadAttention) -> Any:
    """The parameters with one projection of all heads in the place of each list."""
    query, key, value = map(join_heads, parameters[:3])
    return parameters._replace(query=query, key=key, value=value)


def split_heads(x: Float[torch.Tensor, "B T HW"], num_heads: int) -> Float[torch.Tensor, "B H T W"]:
    """Head h is the h-th block of consecutive columns (MHA-1)."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).transpose(1, 2)


def concatenate_heads(x: Float[torch.Tensor, "B H T W"]) -> Float[torch.Tensor, "B T HW"]:
    """The heads' columns side by side again, in order."""
    B, H, T, width = x.shape
    return x.transpose(1, 2).reshape(B, T, H * width)


def multi_head_attention(
    parameters: MultiHeadAttention,
    query: Float[torch.Tensor, "B Q E"],
    key: Float[torch.Tensor, "B K E_key"],
    value: Float[torch.Tensor, "B K E_value"],
    *,
    num_heads: int,
    mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    dropout_keep: Bool[torch.Tensor, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> Float[torch.Tensor, "B Q E_out"]:
    """Project query, key and value, attend in every head, and project what the heads give (MHA-1, MHA-2).

    A weight is the transpose of `torch.nn.Linear`'s.

    Args:
        parameters: Four projections in the dtype of query, each with a weight [in, out]. Instead of one projection,
            query, key and value may have a list with one for each head.
        query: [B, Q, E].
        key: [B, K, E_key].
        value: [B, K, E_value].
        num_heads: H, the number of query heads.
        mask, bias, scale, softcap, sinks, dropout_keep, dropout_rate, empty_rows: As in `attention`.

    Returns:
        A new array [B, Q, E_out] in the dtype of query.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, MultiHeadAttention)
    projections: Any = fused(parameters)
    H, G, _ = checks.multi_head_attention(parameters, projections, query, key, value, num_heads)
    output = attention(
        split_heads(linear(projections.query, query), H),
        split_heads(linear(projections.key, key), G),
        split_heads(linear(projections.value, value), G),
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout_keep=dropout_keep,
        dropout_rate=dropout_rate,
        empty_rows=empty_rows,
    )
    return linear(projections.output, concatenate_heads(output))
