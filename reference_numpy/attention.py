"""Attention, defined (rules ATT-1 to ATT-14, MHA-1, MHA-2; "Attention Is All You Need", section 3.2).

    scores  = softcap(scale * query . key) + bias        for the pairs that the mask allows, and for no others
    weights = softmax over the allowed keys of a row     0 where the mask forbids, and in a row that allows nothing
    output  = weights . value

Shapes: query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V], output [B, H, Q, V]. Query head h reads key and value
head h // (H / G). B, H, Q and K may be 0.

Dtypes: query, key and value share one of float16, bfloat16, float32, float64. Everything in between is kept in float32,
or in float64 for float64, and is rounded once, at the end.

Differs from the paper: forbidden pairs are left out of the arithmetic instead of being set to a large negative number,
so what stands behind a mask (NaN and infinity included) cannot reach an output or a gradient; and a row that may attend
to nothing is 0 instead of undefined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.masks import allowed_pairs, checked_mask
from specification import Linear, MultiHeadAttention, checks
from specification.dtypes import compute_dtype_name, dtype_name

BLOCK_SCORES = 2**22
"""Scores held at a time; long sequences are taken in blocks of queries, so that [B, H, Q, K] never stands in memory."""


# --- the pieces -------------------------------------------------------------------------------------------------------


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


def widen(array: Float[np.ndarray, "..."] | None) -> Any:
    """The array in the dtype in which everything is computed: float32, or float64 for float64 (ATT-9)."""
    if array is None:
        return None
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected a np.ndarray, got {type(array).__name__}")
    return array.astype(compute_dtype_name(dtype_name(array)))


def query_blocks(batch: int, heads: int, queries: int, keys: int) -> Iterator[slice]:
    """Slices of consecutive queries whose scores fit in BLOCK_SCORES numbers."""
    size = max(1, BLOCK_SCORES // max(batch * heads * keys, 1))
    return (slice(start, min(start + size, queries)) for start in range(0, queries, size))


def visible_pairs(
    mask: Any, bias: Float[np.ndarray, "..."] | None, query_length: int, key_length: int, rows: slice
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


# --- the operations ---------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")  # NaN and infinity are legal inputs, and say so in the output
def attention(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    value: Float[np.ndarray, "B G K V"],
    *,
    mask: Any = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    dropout_keep: Bool[np.ndarray, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> Float[np.ndarray, "B H Q V"]:
    """output = softmax(softcap(scale * query . key) + bias) . value, over the keys that the mask allows.

    mask: a description or a boolean array, True = may attend. None allows every pair.
    bias: added to the scores, [Q, K] or [B or 1, H or 1, Q, K], in the inputs' dtype or the wider one used inside. -inf
        in it forbids the pair.
    scale: any finite number; None is 1 / sqrt(D).
    softcap: c > 0 squeezes scores into (-c, c) by c * tanh(scores / c), before bias and mask.
    sinks: one logit for each query head that takes part in the denominator and has no value.
    dropout_keep, dropout_rate: weights * keep / (1 - rate), after the softmax; the caller draws `keep` (ATT-11).
    empty_rows: what a query that may attend to nothing gives: "zero", or, for dialects, "mean" or "nan" (ATT-6).

    Returns a new array in the dtype of query. Raises TypeError for dtypes and ValueError for sizes and numbers that are
    not as described above.
    """
    checks.attention(
        query, key, value, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask, dtype = checked_mask(mask, Q, K, B, H), query.dtype
    query, key, value = widen(query), repeat_heads(widen(key), H), repeat_heads(widen(value), H)
    bias, sinks = widen(bias), widen(sinks)
    output = np.empty((B, H, Q, value.shape[-1]), dtype)
    for rows in query_blocks(B, H, Q, K):
        allowed, block_bias = visible_pairs(mask, bias, Q, K, rows)
        scores = attention_scores(query[:, :, rows], key, allowed, bias=block_bias, scale=scale, softcap=softcap)
        weights, _ = softmax(scores, allowed, sinks)
        weights, reach = fill_empty_rows(weights, allowed, empty_rows)
        if dropout_keep is not None:
            weights = weights * dropout_factor(dropout_keep[:, :, rows], dropout_rate, weights.dtype)
        output[:, :, rows] = allowed_sum(weights, value, reach)
    return output


@np.errstate(all="ignore")
def attention_weights(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    *,
    mask: Any = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    empty_rows: str = "zero",
) -> Float[np.ndarray, "B H Q K"]:
    """The weights that `attention` gives to every key, before dropout: [B, H, Q, K] in the dtype of query (ATT-14).

    Arguments and errors as in `attention`.
    """
    checks.attention(
        query, key, None, bias=bias, scale=scale, softcap=softcap, sinks=sinks, empty_rows=empty_rows
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask, dtype = checked_mask(mask, Q, K, B, H), query.dtype
    query, key, bias, sinks = widen(query), repeat_heads(widen(key), H), widen(bias), widen(sinks)
    output = np.empty((B, H, Q, K), dtype)
    for rows in query_blocks(B, H, Q, K):
        allowed, block_bias = visible_pairs(mask, bias, Q, K, rows)
        scores = attention_scores(query[:, :, rows], key, allowed, bias=block_bias, scale=scale, softcap=softcap)
        weights, _ = softmax(scores, allowed, sinks)
        output[:, :, rows], _ = fill_empty_rows(weights, allowed, empty_rows)
    return output


@np.errstate(all="ignore")
def attention_logsumexp(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    *,
    mask: Any = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
) -> Float[np.ndarray, "B H Q"]:
    """log of the sum of exp(scores) over the allowed keys, and of exp(sink) if there is one: [B, H, Q] (ATT-14).

    A query that may attend to nothing has -inf (with a sink: the sink). The dtype is the one used inside, float32 or
    float64, because merging partial results needs it whole. Arguments and errors as in `attention`.
    """
    checks.attention(query, key, None, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H)
    query, key, bias, sinks = widen(query), repeat_heads(widen(key), H), widen(bias), widen(sinks)
    output = np.empty((B, H, Q), query.dtype)
    for rows in query_blocks(B, H, Q, K):
        allowed, block_bias = visible_pairs(mask, bias, Q, K, rows)
        scores = attention_scores(query[:, :, rows], key, allowed, bias=block_bias, scale=scale, softcap=softcap)
        _, output[:, :, rows] = softmax(scores, allowed, sinks)
    return output


@np.errstate(all="ignore")
def merge_attention(
    outputs: Sequence[Float[np.ndarray, "B H Q V"]], logsumexps: Sequence[Float[np.ndarray, "B H Q"]]
) -> tuple[Float[np.ndarray, "B H Q V"], Float[np.ndarray, "B H Q"]]:
    """Attention over all keys, from its results over disjoint sets of them (ATT-14).

    logsumexp = log sum_p exp(logsumexps[p]);  output = sum_p exp(logsumexps[p] - logsumexp) * outputs[p]

    A part whose log-sum-exp is -inf saw no key and counts for nothing, whatever its output. A sink belongs to one part
    only. Outputs share one dtype, which the merged output has too; log-sum-exps have the wider dtype used inside.
    """
    checks.merge(outputs, logsumexps)
    parts = np.stack([widen(output) for output in outputs], axis=-2)
    scores = np.stack([widen(logsumexp) for logsumexp in logsumexps], axis=-1)
    # Merging is attention once more: one query, one key for each part, the parts' log-sum-exps as its scores.
    seen = scores != -np.inf
    weights, logsumexp = softmax(np.where(seen, scores, 0), seen)
    output = allowed_sum(weights[..., None, :], parts, seen[..., None, :])[..., 0, :]
    return output.astype(outputs[0].dtype), logsumexp


# --- multi-head attention ---------------------------------------------------------------------------------------------


def linear(parameters: Linear, x: Float[np.ndarray, "... I"]) -> Float[np.ndarray, "... O"]:
    """x @ weight + bias, rounded once to the dtype of x (MHA-1)."""
    output = widen(x) @ widen(parameters.weight)
    if parameters.bias is not None:
        output = output + widen(parameters.bias)
    return output.astype(x.dtype)


def join_heads(projections: Linear | Sequence[Linear]) -> Linear:
    """One projection out of per-head projections: their columns side by side, in head order (MHA-2)."""
    if isinstance(projections, Linear):
        return projections
    checks.join_heads(projections)
    weight = np.concatenate([head.weight for head in projections], axis=1)
    if projections[0].bias is None:
        return Linear(weight)
    return Linear(weight, np.concatenate([head.bias for head in projections]))


def split_heads(x: Float[np.ndarray, "B T HW"], num_heads: int) -> Float[np.ndarray, "B H T W"]:
    """Head h is the h-th block of consecutive columns (MHA-1)."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)


def concatenate_heads(x: Float[np.ndarray, "B H T W"]) -> Float[np.ndarray, "B T HW"]:
    """The heads' columns side by side again, in order."""
    B, H, T, width = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * width)


@np.errstate(all="ignore")
def multi_head_attention(
    parameters: MultiHeadAttention,
    query: Float[np.ndarray, "B Q E"],
    key: Float[np.ndarray, "B K E_key"],
    value: Float[np.ndarray, "B K E_value"],
    *,
    num_heads: int,
    mask: Any = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    dropout_keep: Bool[np.ndarray, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> Float[np.ndarray, "B Q E_out"]:
    """output(concatenated heads of attention(query(x), key(y), value(z))), each a linear projection (MHA-1, MHA-2).

    The number of key and value heads, and the widths of both kinds, follow from the projections' shapes: D is query's
    columns / num_heads, G is key's columns / D, V is value's columns / G. Every projection and the attention round to
    the inputs' dtype, which the parameters share. Other arguments as in `attention`.
    """
    checks.structure("parameters", parameters, MultiHeadAttention)
    projections: Any = MultiHeadAttention._make([*map(join_heads, parameters[:3]), parameters.output])
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
