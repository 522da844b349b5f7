"""The steps of attention: scores, softmax, weighted sum, and all of them in order (MASK-7, ATT-1 to ATT-11).

    scores  = softcap(scale * query . key) + bias        for the pairs that the mask allows, and for no others
    weights = softmax over the allowed keys of a row     0 where the mask forbids, and in a row that allows nothing
    output  = weights . value

Differs from the paper: forbidden pairs are left out of the arithmetic instead of being set to a large negative number,
so what stands behind a mask (NaN and infinity included) cannot reach an output or a gradient; and a row that may attend
to nothing is 0 instead of undefined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.dtypes import widen
from reference_numpy.masks import allowed_pairs
from specification.masks import Mask

BLOCK_SCORES = 2**22
"""Scores held at a time; long sequences are taken in blocks of queries, so that [B, H, Q, K] never stands in memory."""


def pair_products(
    left: Float[np.ndarray, "*lead Q D"],
    right: Float[np.ndarray, "*lead K D"],
    allowed: Bool[np.ndarray, "*#lead #Q #K"],
) -> Float[np.ndarray, "*lead Q K"]:
    """left . right for the allowed pairs, and 0 for the others, whatever they hold (MASK-7)."""
    return np.where(allowed, left @ np.swapaxes(right, -1, -2), 0)


def allowed_sum(
    weights: Float[np.ndarray, "*lead Q K"],
    values: Float[np.ndarray, "*lead K V"],
    allowed: Bool[np.ndarray, "*#lead #Q #K"],
) -> Float[np.ndarray, "*lead Q V"]:
    """weights @ values, summed over the allowed keys only; `weights` is 0 at the others.

    A product with a forbidden weight of 0 is not enough, since 0 * NaN = NaN (MASK-7). So the sum runs over the finite
    values, and an entry that an allowed NaN or infinity reaches becomes NaN (ATT-10).
    """
    finite = np.isfinite(values)
    output = weights @ np.where(finite, values, 0)
    if not finite.all():
        reached = np.broadcast_to(allowed, weights.shape).astype(values.dtype) @ (~finite).astype(values.dtype) > 0
        output = np.where(reached, np.nan, output)
    return output


def attention_scores(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B H K D"],
    allowed: Bool[np.ndarray, "#B #H #Q #K"],
    *,
    bias: Float[np.ndarray, "#B #H #Q #K"] | None,
    scale: float | None,
    softcap: float | None,
) -> Float[np.ndarray, "B H Q K"]:
    """softcap(scale * query . key) + bias for the allowed pairs, 0 for the others (ATT-1 to ATT-4)."""
    scores = pair_products(query, key, allowed) * resolve_scale(scale, query.shape[-1])
    if softcap is not None:
        scores = float(softcap) * np.tanh(scores / float(softcap))
    if bias is not None:
        scores = scores + np.where(allowed, bias, 0)
    return scores


def softmax(
    scores: Float[np.ndarray, "B H Q K"],
    allowed: Bool[np.ndarray, "#B #H #Q #K"],
    sinks: Float[np.ndarray, "H"] | None = None,
) -> tuple[Float[np.ndarray, "B H Q K"], Float[np.ndarray, "B H Q"]]:
    """Softmax over the allowed keys, and its log-sum-exp (ATT-5, ATT-6).

    weights = exp(scores - maximum) / total, where total also counts exp(sink - maximum) when there is a sink. A row
    without allowed keys has weights 0 and log-sum-exp -inf (with a sink: the sink).
    """
    allowed = np.broadcast_to(allowed, scores.shape)
    maximum = np.max(scores, axis=-1, where=allowed, initial=-np.inf, keepdims=True)
    if sinks is not None:
        maximum = np.maximum(maximum, sinks[:, None, None])
    # An empty row's maximum is -inf; a finite number in its place avoids inf - inf and changes nothing else.
    maximum = np.where(maximum == -np.inf, 0, maximum)
    # Subtracting the maximum leaves the quotient as it is and keeps exp from overflowing.
    exponentials = np.exp(np.where(allowed, scores - maximum, -np.inf))
    total = np.sum(exponentials, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - maximum)
    weights = np.where(allowed, exponentials / np.where(total == 0, 1, total), 0)
    return weights, (maximum + np.log(total))[..., 0]


def fill_empty_rows(
    weights: Float[np.ndarray, "B H Q K"], allowed: Bool[np.ndarray, "#B #H #Q #K"], empty_rows: str
) -> tuple[Float[np.ndarray, "B H Q K"], Bool[np.ndarray, "#B #H #Q #K"]]:
    """Weights of the rows that may attend to nothing, and the pairs over which values are then summed (ATT-6).

    "zero" is the definition. "mean" spreads the row over all keys, forbidden ones too, which is what masking by a large
    finite number comes to; "nan" makes it NaN, which is what masking by -inf comes to.
    """
    if empty_rows == "zero":
        return weights, allowed
    empty = ~np.any(np.broadcast_to(allowed, weights.shape), axis=-1, keepdims=True)
    filling = np.nan if empty_rows == "nan" else 1 / max(weights.shape[-1], 1)
    return np.where(empty, weights.dtype.type(filling), weights), allowed | empty


def resolve_scale(scale: float | None, width: int) -> float:
    """1 / sqrt(D) unless another scale is given (ATT-1)."""
    return 1 / math.sqrt(width) if scale is None else float(scale)


def repeat_heads(array: Float[np.ndarray, "B G K W"], num_heads: int) -> Float[np.ndarray, "B H K W"]:
    """One key or value head for every query head: query head h reads head h // (H / G) (ATT-7)."""
    return np.repeat(array, num_heads // max(array.shape[1], 1), axis=1)


def query_blocks(batch: int, heads: int, queries: int, keys: int) -> Iterator[slice]:
    """Slices of consecutive queries whose scores fit in BLOCK_SCORES numbers."""
    size = max(1, BLOCK_SCORES // max(batch * heads * keys, 1))
    return (slice(start, min(start + size, queries)) for start in range(0, queries, size))


def visible_pairs(
    mask: Mask | None, bias: Float[np.ndarray, "..."] | None, query_length: int, key_length: int, rows: slice
) -> tuple[Bool[np.ndarray, "#B #H #q #K"], Float[np.ndarray, "#B #H #q #K"] | None]:
    """Which pairs count for a block of queries, and the block's bias; -inf in the bias forbids a pair (ATT-3)."""
    allowed = allowed_pairs(mask, query_length, key_length, rows)
    if bias is None:
        return allowed, None
    bias = bias[..., rows, :] if bias.ndim == 4 else bias[None, None, rows, :]
    return allowed & (bias != -np.inf), bias


def dropout_factor(keep: Bool[np.ndarray, "..."], rate: float, dtype: np.dtype[Any]) -> Float[np.ndarray, "..."]:
    """keep / (1 - rate), with which weights are multiplied; no mask, so 0 * NaN is NaN (ATT-11)."""
    return np.where(keep, 1 / (1 - float(rate)), 0.0).astype(dtype)


def reference_attention(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    value: Float[np.ndarray, "B G K V"],
    *,
    mask: Mask | None,
    bias: Float[np.ndarray, "..."] | None,
    scale: float | None,
    softcap: float | None,
    sinks: Float[np.ndarray, "H"] | None,
    dropout_keep: Bool[np.ndarray, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> tuple[Float[np.ndarray, "B H Q V"], Float[np.ndarray, "B H Q"]]:
    """Compute `attention`, and its log-sum-exp, for arguments that it has checked, without the last rounding."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    query, key, value = widen(query), repeat_heads(widen(key), H), repeat_heads(widen(value), H)
    bias, sinks = widen(bias), widen(sinks)
    output, logsumexp = np.empty((B, H, Q, value.shape[-1]), query.dtype), np.empty((B, H, Q), query.dtype)
    for rows in query_blocks(B, H, Q, K):
        allowed, block_bias = visible_pairs(mask, bias, Q, K, rows)
        scores = attention_scores(query[:, :, rows], key, allowed, bias=block_bias, scale=scale, softcap=softcap)
        weights, logsumexp[:, :, rows] = softmax(scores, allowed, sinks)
        weights, reach = fill_empty_rows(weights, allowed, empty_rows)
        if dropout_keep is not None:
            weights = weights * dropout_factor(dropout_keep[:, :, rows], dropout_rate, weights.dtype)
        output[:, :, rows] = allowed_sum(weights, value, reach)
    return output, logsumexp
