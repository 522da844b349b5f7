"""Gradients of the operations in `attention.py`, by hand (ATT-12).

Each `<operation>_vjp` takes the operation's own arguments and the cotangent of its result (the gradient of some number
with respect to that result), and returns the gradients of the same number with respect to the arguments, in their own
shapes and dtypes. With P the weights, S the scores and a bar over a name for "gradient with respect to":

    V_bar = P^T O_bar        P_bar = O_bar V^T        S_bar = P * (P_bar - rowsum(P * P_bar)) + P * L_bar
    Q_bar = scale * S_bar K  K_bar = scale * S_bar^T Q

where L is the log-sum-exp. Every sum runs over the allowed pairs only, so a forbidden NaN reaches no gradient, and an
empty row gives and receives 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.attention import (
    allowed_sum,
    attention,
    attention_scores,
    concatenate_heads,
    dropout_factor,
    fill_empty_rows,
    join_heads,
    linear,
    pair_products,
    query_blocks,
    repeat_heads,
    resolve_scale,
    softmax,
    split_heads,
    visible_pairs,
    widen,
)
from reference_numpy.masks import checked_mask
from specification import Linear, MultiHeadAttention, checks
from specification.dtypes import compute_dtype_name, dtype_name


class AttentionGradients(NamedTuple):
    """Gradients in the shapes and dtypes of the arguments; None for an argument that was not given."""

    query: Any
    key: Any
    value: Any
    bias: Any
    sinks: Any


class MultiHeadAttentionGradients(NamedTuple):
    """Gradients of the parameters (fused, as `join_heads` gives them) and of everything else."""

    parameters: MultiHeadAttention
    query: Any
    key: Any
    value: Any
    bias: Any
    sinks: Any


# --- the pieces -------------------------------------------------------------------------------------------------------


def attention_scores_vjp(
    query: Any, key: Any, allowed: Any, cotangent: Any, *, scale: float | None, softcap: float | None
) -> tuple[Any, Any, Any]:
    """(query, key, bias) gradients; the bias's is [B, H, q, K], before it is summed over what the bias broadcast."""
    scale = resolve_scale(scale, query.shape[-1])
    bias_gradient = cotangent = np.where(allowed, cotangent, 0)
    if softcap is not None:
        slope = 1 - np.tanh(pair_products(query, key, allowed) * scale / float(softcap)) ** 2
        cotangent = np.where(allowed, cotangent * slope, 0)
    turned = np.swapaxes(allowed, -1, -2)
    query_gradient = scale * allowed_sum(cotangent, key, allowed)
    key_gradient = scale * allowed_sum(np.swapaxes(cotangent, -1, -2), query, turned)
    return query_gradient, key_gradient, bias_gradient


def softmax_vjp(weights: Any, allowed: Any, weights_cotangent: Any, logsumexp_cotangent: Any) -> Any:
    """Gradient of the scores: P * (P_bar - rowsum(P * P_bar) + L_bar), 0 where forbidden."""
    mean = np.sum(np.where(allowed, weights * weights_cotangent, 0), axis=-1, keepdims=True)
    return np.where(allowed, weights * (weights_cotangent - mean + logsumexp_cotangent[..., None]), 0)


def sinks_vjp(sinks: Any, logsumexp: Any, weights: Any, allowed: Any, weights_cotangent: Any, cotangent: Any) -> Any:
    """Gradient of the sinks: the sink's own weight times (L_bar - rowsum(P * P_bar)), summed over batch and queries."""
    mean = np.sum(np.where(allowed, weights * weights_cotangent, 0), axis=-1)
    # A sink of -inf weighs nothing, also in an empty row, where -inf - -inf would be NaN.
    weight = np.exp(np.where(sinks[:, None] == -np.inf, -np.inf, sinks[:, None] - logsumexp))
    return np.sum(weight * (cotangent - mean), axis=(0, 2))


def sum_groups(gradient: Float[np.ndarray, "B H K W"], key_heads: int) -> Float[np.ndarray, "B G K W"]:
    """Transpose of `repeat_heads`: the gradients of the query heads that read one key head, added up."""
    B, H, K, W = gradient.shape
    return gradient.reshape(B, key_heads, H // max(key_heads, 1), K, W).sum(axis=2)


def sum_broadcast(gradient: Any, like: Any) -> Any:
    """Transpose of broadcasting an array [Q, K] or [B or 1, H or 1, Q, K] over batch and heads."""
    shape = like.shape if like.ndim == 4 else (1, 1, *like.shape)
    axes = tuple(axis for axis in (0, 1) if shape[axis] == 1)
    return gradient.sum(axis=axes).reshape(like.shape)


def pullback(
    query: Any,
    key: Any,
    value: Any,
    cotangent: Any,
    kind: str,
    *,
    mask: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    sinks: Any,
    dropout_keep: Any = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> AttentionGradients:
    """Gradients when `cotangent` is that of the "output", the "weights" or the "logsumexp", in blocks of queries."""
    given, (B, H, Q, _), (G, K) = (query, key, value, bias, sinks), query.shape, key.shape[1:3]
    mask = checked_mask(mask, Q, K, B, H)
    query, key, cotangent = widen(query), repeat_heads(widen(key), H), widen(cotangent)
    value = None if value is None else repeat_heads(widen(value), H)
    bias, sinks = widen(bias), widen(sinks)
    query_gradient, key_gradient = np.zeros_like(query), np.zeros_like(key)
    value_gradient: Any = None if value is None else np.zeros_like(value)
    bias_gradient: Any = None if bias is None else np.zeros_like(bias)
    sinks_gradient = None if sinks is None else np.zeros_like(sinks)
    for rows in query_blocks(B, H, Q, K):
        part = cotangent[:, :, rows]
        allowed, block_bias = visible_pairs(mask, bias, Q, K, rows)
        scores = attention_scores(query[:, :, rows], key, allowed, bias=block_bias, scale=scale, softcap=softcap)
        weights, logsumexp = softmax(scores, allowed, sinks)
        weights_cotangent, logsumexp_cotangent = np.zeros_like(weights), np.zeros_like(logsumexp)
        if kind == "weights":
            weights_cotangent = part
        elif kind == "logsumexp":
            logsumexp_cotangent = part
        else:
            filled, reach = fill_empty_rows(weights, allowed, empty_rows)
            keep = np.ones(1, bool) if dropout_keep is None else dropout_keep[:, :, rows]
            factor = dropout_factor(keep, dropout_rate, weights.dtype)
            turned = np.swapaxes(reach, -1, -2)
            value_gradient += allowed_sum(np.swapaxes(filled * factor, -1, -2), part, turned)
            weights_cotangent = pair_products(part, value, reach) * factor
        scores_gradient = softmax_vjp(weights, allowed, weights_cotangent, logsumexp_cotangent)
        query_gradient[:, :, rows], key_part, bias_part = attention_scores_vjp(
            query[:, :, rows], key, allowed, scores_gradient, scale=scale, softcap=softcap
        )
        key_gradient += key_part
        if bias is not None:
            where = (..., rows, slice(None))
            bias_gradient[where] = sum_broadcast(bias_part, bias[where])
        if sinks is not None:
            sinks_gradient += sinks_vjp(sinks, logsumexp, weights, allowed, weights_cotangent, logsumexp_cotangent)
    key_gradient = sum_groups(key_gradient, G)
    value_gradient = None if value is None else sum_groups(value_gradient, G)
    gradients = (query_gradient, key_gradient, value_gradient, bias_gradient, sinks_gradient)
    return AttentionGradients(
        *(None if array is None else gradient.astype(array.dtype)
          for gradient, array in zip(gradients, given, strict=True))
    )  # fmt: skip


# --- the operations ---------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def attention_vjp(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    value: Float[np.ndarray, "B G K V"],
    cotangent: Float[np.ndarray, "B H Q V"],
    *,
    mask: Any = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    dropout_keep: Bool[np.ndarray, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> AttentionGradients:
    """Gradients of query, key, value, bias and sinks, given that of `attention`'s output. Arguments as there."""
    options = dict[str, Any](bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout_keep=dropout_keep)
    options |= {"dropout_rate": dropout_rate, "empty_rows": empty_rows}
    checks.attention(query, key, value, **options)
    checks.cotangent(cotangent, (*query.shape[:3], value.shape[3]), dtype_name(query))
    return pullback(query, key, value, cotangent, "output", mask=mask, **options)


@np.errstate(all="ignore")
def attention_weights_vjp(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    cotangent: Float[np.ndarray, "B H Q K"],
    *,
    mask: Any = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    empty_rows: str = "zero",
) -> AttentionGradients:
    """Gradients of query, key, bias and sinks, given that of `attention_weights`. Arguments as there."""
    options = dict[str, Any](bias=bias, scale=scale, softcap=softcap, sinks=sinks, empty_rows=empty_rows)
    checks.attention(query, key, None, **options)
    checks.cotangent(cotangent, (*query.shape[:3], key.shape[2]), dtype_name(query))
    return pullback(query, key, None, cotangent, "weights", mask=mask, **options)


@np.errstate(all="ignore")
def attention_logsumexp_vjp(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    cotangent: Float[np.ndarray, "B H Q"],
    *,
    mask: Any = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
) -> AttentionGradients:
    """Gradients of query, key, bias and sinks, given that of `attention_logsumexp`. Arguments as there."""
    options = dict[str, Any](bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    checks.attention(query, key, None, **options)
    checks.cotangent(cotangent, query.shape[:3], compute_dtype_name(dtype_name(query)))
    return pullback(query, key, None, cotangent, "logsumexp", mask=mask, **options)


@np.errstate(all="ignore")
def merge_attention_vjp(
    outputs: Sequence[Float[np.ndarray, "B H Q V"]],
    logsumexps: Sequence[Float[np.ndarray, "B H Q"]],
    output_cotangent: Float[np.ndarray, "B H Q V"],
    logsumexp_cotangent: Float[np.ndarray, "B H Q"],
) -> tuple[list[Float[np.ndarray, "B H Q V"]], list[Float[np.ndarray, "B H Q"]]]:
    """Gradients of every part's output and log-sum-exp, given those of `merge_attention`'s two results."""
    checks.merge(outputs, logsumexps)
    dtype = dtype_name(outputs[0])
    checks.cotangent(output_cotangent, outputs[0].shape, dtype, "output_cotangent")
    checks.cotangent(logsumexp_cotangent, logsumexps[0].shape, compute_dtype_name(dtype), "logsumexp_cotangent")
    parts = np.stack([widen(output) for output in outputs], axis=-2)
    scores = np.stack([widen(logsumexp) for logsumexp in logsumexps], axis=-1)
    output_cotangent, logsumexp_cotangent = widen(output_cotangent), widen(logsumexp_cotangent)
    seen = scores != -np.inf
    weights, _ = softmax(np.where(seen, scores, 0), seen)
    weights_cotangent = pair_products(output_cotangent[..., None, :], parts, seen[..., None, :])[..., 0, :]
    scores_gradient = softmax_vjp(weights, seen, weights_cotangent, logsumexp_cotangent)
    parts_gradient = allowed_sum(weights[..., None], output_cotangent[..., None, :], seen[..., None])
    return (
        [parts_gradient[..., p, :].astype(output.dtype) for p, output in enumerate(outputs)],
        [scores_gradient[..., p].astype(logsumexp.dtype) for p, logsumexp in enumerate(logsumexps)],
    )


# --- multi-head attention ---------------------------------------------------------------------------------------------


def linear_vjp(
    parameters: Linear, x: Float[np.ndarray, "... I"], cotangent: Float[np.ndarray, "... O"]
) -> tuple[Linear, Float[np.ndarray, "... I"]]:
    """Gradients of the parameters and of x, for `linear`."""
    count = math.prod(x.shape[:-1])
    rows, flat = (widen(array).reshape(count, array.shape[-1]) for array in (cotangent, x))
    weight = (flat.T @ rows).astype(parameters.weight.dtype)
    bias = None if parameters.bias is None else rows.sum(axis=0).astype(parameters.bias.dtype)
    return Linear(weight, bias), (widen(cotangent) @ widen(parameters.weight).T).astype(x.dtype)


@np.errstate(all="ignore")
def multi_head_attention_vjp(
    parameters: MultiHeadAttention,
    query: Float[np.ndarray, "B Q E"],
    key: Float[np.ndarray, "B K E_key"],
    value: Float[np.ndarray, "B K E_value"],
    cotangent: Float[np.ndarray, "B Q E_out"],
    *,
    num_heads: int,
    **options: Any,
) -> MultiHeadAttentionGradients:
    """Gradients of parameters, query, key, value, bias and sinks, given that of `multi_head_attention`'s output.

    `options` are those of `multi_head_attention`.
    """
    checks.structure("parameters", parameters, MultiHeadAttention)
    projections: Any = MultiHeadAttention._make([*map(join_heads, parameters[:3]), parameters.output])
    H, G, _ = checks.multi_head_attention(parameters, projections, query, key, value, num_heads)
    checks.cotangent(cotangent, (*query.shape[:2], projections.output.weight.shape[1]), dtype_name(query))
    inputs, counts = (query, key, value), (H, G, G)
    heads = [split_heads(linear(p, x), n) for p, x, n in zip(projections[:3], inputs, counts, strict=True)]
    joined = concatenate_heads(attention(*heads, **options))
    output_gradient, joined_gradient = linear_vjp(projections.output, joined, cotangent)
    inner = attention_vjp(heads[0], heads[1], heads[2], split_heads(joined_gradient, H), **options)
    pairs = [
        linear_vjp(p, x, concatenate_heads(gradient))
        for p, x, gradient in zip(projections[:3], inputs, inner[:3], strict=True)
    ]
    parameters_gradient = MultiHeadAttention._make([*(pair[0] for pair in pairs), output_gradient])
    inputs_gradient = [pair[1] for pair in pairs]
    return MultiHeadAttentionGradients._make([parameters_gradient, *inputs_gradient, inner.bias, inner.sinks])
