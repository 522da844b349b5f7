"""The steps of attention in PyTorch (MASK-7, ATT-1 to ATT-11), as `reference_numpy/attention_steps.py` defines them.

Gradients are autograd's. Only two sums of products have a gradient written here, because what autograd does for a
product, 0 * NaN = NaN, would let a forbidden NaN through (MASK-7).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float

from specification.masks import Mask
from torch_impl.dtypes import Context, GradientByHand, number, product, widen
from torch_impl.masks import allowed_pairs


def pair_products(
    left: Float[torch.Tensor, "*lead Q D"],
    right: Float[torch.Tensor, "*lead K D"],
    allowed: Bool[torch.Tensor, "*#lead #Q #K"],
) -> Float[torch.Tensor, "*lead Q K"]:
    """left . right for the allowed pairs, and 0 for the others, whatever they hold (MASK-7)."""
    return PairProducts.apply(left, right, allowed)


def allowed_sum(
    weights: Float[torch.Tensor, "*lead Q K"],
    values: Float[torch.Tensor, "*lead K V"],
    allowed: Bool[torch.Tensor, "*#lead #Q #K"],
) -> Float[torch.Tensor, "*lead Q V"]:
    """weights @ values, summed over the allowed keys only; `weights` is 0 at the others.

    An entry that an allowed NaN or infinity reaches becomes NaN (ATT-10); a forbidden one reaches nothing (MASK-7).
    """
    return AllowedSum.apply(weights, values, allowed)


class PairProducts(GradientByHand):
    """`pair_products`; its gradients are allowed sums."""

    @staticmethod
    def forward(left: torch.Tensor, right: torch.Tensor, allowed: torch.Tensor) -> Any:
        return torch.where(allowed, product(left, right.mT), 0)

    @staticmethod
    def backward(ctx: Context, cotangent: torch.Tensor) -> tuple[Any, Any, None]:
        left, right, allowed = ctx.saved_tensors
        cotangent = torch.where(allowed, cotangent, 0)
        return allowed_sum(cotangent, right, allowed), allowed_sum(cotangent.mT, left, allowed.mT), None


class AllowedSum(GradientByHand):
    """`allowed_sum`; its gradients are pair products and an allowed sum."""

    @staticmethod
    def forward(weights: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor) -> Any:
        finite = torch.isfinite(values)
        output = product(weights, torch.where(finite, values, 0))
        reached = product(allowed.expand(weights.shape).to(values.dtype), (~finite).to(values.dtype)) > 0
        return torch.where(reached, torch.nan, output)

    @staticmethod
    def backward(ctx: Context, cotangent: torch.Tensor) -> tuple[Any, Any, None]:
        weights, values, allowed = ctx.saved_tensors
        return pair_products(cotangent, values, allowed), allowed_sum(weights.mT, cotangent, allowed.mT), None


def attention_scores(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B H K D"],
    allowed: Bool[torch.Tensor, "#B #H #Q #K"],
    *,
    bias: Float[torch.Tensor, "#B #H #Q #K"] | None,
    scale: float | None,
    softcap: float | None,
) -> Float[torch.Tensor, "B H Q K"]:
    """softcap(scale * query . key) + bias for the allowed pairs, 0 for the others (ATT-1 to ATT-4)."""
    scores = pair_products(query, key, allowed) * resolve_scale(scale, query.shape[-1])
    if softcap is not None:
        scores = number(softcap) * torch.tanh(scores / number(softcap))
    if bias is not None:
        scores = scores + torch.where(allowed, bias, 0)
    return scores


def softmax(
    scores: Float[torch.Tensor, "B H Q K"],
    allowed: Bool[torch.Tensor, "#B #H #Q #K"],
    sinks: Float[torch.Tensor, "H"] | None = None,
) -> tuple[Float[torch.Tensor, "B H Q K"], Float[torch.Tensor, "B H Q"]]:
    """Softmax over the allowed keys, and its log-sum-exp (ATT-5, ATT-6)."""
    maximum = row_maximum(torch.where(allowed, scores, -torch.inf))
    if sinks is not None:
        maximum = torch.maximum(maximum, sinks[:, None, None])
    # An empty row's maximum is -inf; a finite number in its place avoids inf - inf and changes nothing else.
    # Neither result depends on which number is subtracted, so the maximum is a constant to the gradient.
    maximum = torch.where(maximum == -torch.inf, 0, maximum).detach()
    # Subtracting the maximum leaves the quotient as it is and keeps exp from overflowing.
    exponentials = torch.exp(torch.where(allowed, scores - maximum, -torch.inf))
    total = torch.sum(exponentials, dim=-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks[:, None, None] - maximum)
    # The total of an empty row is replaced before anything divides by it or takes its logarithm: selecting afterwards
    # would leave 0 * inf = NaN in the gradient.
    empty = total == 0
    total = torch.where(empty, 1, total)
    weights = torch.where(allowed, exponentials / total, 0)
    return weights, torch.where(empty, -torch.inf, maximum + torch.log(total))[..., 0]


def row_maximum(scores: Float[torch.Tensor, "B H Q K"]) -> Float[torch.Tensor, "B H Q 1"]:
    """The largest of each row, -inf where there are no keys at all, which amax refuses."""
    if scores.shape[-1] == 0:
        return scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    return torch.amax(scores, dim=-1, keepdim=True)


def fill_empty_rows(
    weights: Float[torch.Tensor, "B H Q K"], allowed: Bool[torch.Tensor, "#B #H #Q #K"], empty_rows: str
) -> tuple[Float[torch.Tensor, "B H Q K"], Bool[torch.Tensor, "#B #H #Q #K"]]:
    """Weights of the rows that may attend to nothing, and the pairs over which values are then summed (ATT-6)."""
    if empty_rows == "zero":
        return weights, allowed
    empty = ~torch.any(allowed.expand(weights.shape), dim=-1, keepdim=True)
    filling = math.nan if empty_rows == "nan" else 1 / max(weights.shape[-1], 1)
    return torch.where(empty, filling, weights), allowed | empty


def resolve_scale(scale: float | None, width: int) -> float:
    """1 / sqrt(D) unless another scale is given (ATT-1)."""
    return 1 / math.sqrt(width) if scale is None else number(scale)


def repeat_heads(array: Float[torch.Tensor, "B G K W"], num_heads: int) -> Float[torch.Tensor, "B H K W"]:
    """One key or value head for every query head: query head h reads head h // (H / G) (ATT-7)."""
    return torch.repeat_interleave(array, num_heads // max(array.shape[1], 1), dim=1)


def visible_pairs(
    mask: Mask | None, bias: Float[torch.Tensor, "..."] | None, query_length: int, key_length: int, device: torch.device
) -> tuple[Bool[torch.Tensor, "#B #H #Q #K"], Float[torch.Tensor, "#B #H #Q #K"] | None]:
    """Which pairs count, and the bias in rank 4; -inf in the bias forbids a pair (ATT-3).

    device: of the arrays in the mask. A description without arrays does not tell it.
    """
    allowed = allowed_pairs(mask, query_length, key_length, device)
    if bias is None:
        return allowed, None
    bias = bias if bias.ndim == 4 else bias[None, None]
    return allowed & (bias != -torch.inf), bias


def dropout_factor(keep: Bool[torch.Tensor, "..."], rate: float, dtype: torch.dtype) -> Float[torch.Tensor, "..."]:
    """keep / (1 - rate), with which weights are multiplied; no mask, so 0 * NaN is NaN (ATT-11)."""
    # torch.where makes float32 of two Python numbers, which is too coarse for float64.
    return keep.to(dtype) * (1 / (1 - number(rate)))


def reference_attention(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    value: Float[torch.Tensor, "B G K V"],
    *,
    mask: Mask | None,
    bias: Float[torch.Tensor, "..."] | None,
    scale: float | None,
    softcap: float | None,
    sinks: Float[torch.Tensor, "H"] | None,
    dropout_keep: Bool[torch.Tensor, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> tuple[Float[torch.Tensor, "B H Q V"], Float[torch.Tensor, "B H Q"]]:
    """Compute `attention`, and its log-sum-exp, for arguments that it has checked, without the last rounding.

    All [B, H, Q, K] scores stand in memory.
    """
    (_, H, Q, _), K = query.shape, key.shape[2]
    query, key, value = widen(query), repeat_heads(widen(key), H), repeat_heads(widen(value), H)
    bias, sinks = widen(bias), widen(sinks)
    allowed, bias = visible_pairs(mask, bias, Q, K, query.device)
    scores = attention_scores(query, key, allowed, bias=bias, scale=scale, softcap=softcap)
    weights, logsumexp = softmax(scores, allowed, sinks)
    weights, reach = fill_empty_rows(weights, allowed, empty_rows)
    if dropout_keep is not None:
        weights = weights * dropout_factor(dropout_keep, dropout_rate, weights.dtype)
    return allowed_sum(weights, value, reach), logsumexp
