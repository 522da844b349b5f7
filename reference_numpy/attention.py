"""Attention, defined (rules ATT-1 to ATT-14; "Attention Is All You Need", section 3.2).

The steps are in `attention_steps.py`.

Shapes: query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V], output [B, H, Q, V]. Query head h reads key and value
head h // (H / G). B, H, Q and K may be 0.

Dtypes: query, key and value share one of float16, bfloat16, float32, float64. Everything in between is kept in float32,
or in float64 for float64, and is rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.attention_steps import (
    allowed_sum,
    attention_scores,
    fill_empty_rows,
    query_blocks,
    reference_attention,
    repeat_heads,
    softmax,
    visible_pairs,
)
from reference_numpy.dtypes import widen
from reference_numpy.masks import checked_mask
from reference_numpy.tape import operation
from specification import checks
from specification.masks import Mask

__all__ = ["attention", "attention_logsumexp", "attention_weights", "merge_attention"]


@operation
@np.errstate(all="ignore")  # NaN and infinity are legal inputs, and say so in the output
def attention(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    value: Float[np.ndarray, "B G K V"],
    *,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    dropout_keep: Bool[np.ndarray, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> Float[np.ndarray, "B H Q V"]:
    """Compute softmax(softcap(scale * query . key) + bias) . value over the keys that the mask allows.

    Args:
        query: [B, H, Q, D], in float16, bfloat16, float32 or float64.
        key: [B, G, K, D], in the dtype of query. Query head h reads key and value head h // (H / G).
        value: [B, G, K, V], in the dtype of query.
        mask: A description or a boolean array, True = may attend. None allows every pair.
        bias: Added to the scores, [Q, K] or [B or 1, H or 1, Q, K], in the dtype of query or the wider one used inside.
            -inf forbids the pair.
        scale: Any finite number; None is 1 / sqrt(D).
        softcap: c > 0 squeezes scores into (-c, c) by c * tanh(scores / c), before bias and mask.
        sinks: [H], one logit for each query head that takes part in the denominator and has no value.
        dropout_keep: [B, H, Q, K], True = keep the weight. The caller draws it (ATT-11).
        dropout_rate: In [0, 1). Weights that are kept are divided by 1 - rate.
        empty_rows: What a query that may attend to nothing gives: "zero", or, for dialects, "mean" or "nan" (ATT-6).

    Returns:
        A new array [B, H, Q, V] in the dtype of query.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.attention(
        query, key, value, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H)
    output, _ = reference_attention(
        query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    return output.astype(query.dtype)


@np.errstate(all="ignore")
def attention_weights(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    *,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    empty_rows: str = "zero",
) -> Float[np.ndarray, "B H Q K"]:
    """Compute the weights that `attention` gives to every key, before dropout (ATT-14).

    Args:
        query, key, mask, bias, scale, softcap, sinks, empty_rows: As in `attention`.

    Returns:
        A new array [B, H, Q, K] in the dtype of query.

    Raises:
        TypeError, ValueError: As in `attention`.
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
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
) -> Float[np.ndarray, "B H Q"]:
    """Compute log(sum(exp(scores))) over the allowed keys, and over the sink if there is one (ATT-14).

    Args:
        query, key, mask, bias, scale, softcap, sinks: As in `attention`.

    Returns:
        A new array [B, H, Q] in the dtype used inside, float32 or float64, because merging partial results needs it
        whole. A query that may attend to nothing has -inf (with a sink: the sink).

    Raises:
        TypeError, ValueError: As in `attention`.
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
    """Merge results of `attention` over disjoint sets of keys into those over all keys (ATT-14).

    logsumexp = log sum_p exp(logsumexps[p]);  output = sum_p exp(logsumexps[p] - logsumexp) * outputs[p]

    A part whose log-sum-exp is -inf saw no key and counts for nothing, whatever its output. A sink belongs to one part
    only.

    Args:
        outputs: [B, H, Q, V] for each part, in one dtype.
        logsumexps: [B, H, Q] for each part, as `attention_logsumexp` gives them.

    Returns:
        The output in the dtype of outputs, and the log-sum-exp in float32, or in float64 for float64.

    Raises:
        TypeError: Dtypes that differ.
        ValueError: No part, or parts whose shapes differ.
    """
    checks.merge(outputs, logsumexps)
    parts = np.stack([widen(output) for output in outputs], axis=-2)
    scores = np.stack([widen(logsumexp) for logsumexp in logsumexps], axis=-1)
    # Merging is attention once more: one query, one key for each part, the parts' log-sum-exps as its scores.
    seen = scores != -np.inf
    weights, logsumexp = softmax(np.where(seen, scores, 0), seen)
    output = allowed_sum(weights[..., None, :], parts, seen[..., None, :])[..., 0, :]
    return output.astype(outputs[0].dtype), logsumexp
