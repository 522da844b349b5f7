"""Gradients of the operations in `attention.py`, by hand (ATT-12).

Each `<operation>_vjp` takes the operation's own arguments and the cotangent of its result (the gradient of some number
with respect to that result), and returns the gradients of the same number with respect to the arguments, in their own
shapes and dtypes. With P the weights and a bar over a name for "gradient with respect to":

    V_bar = P^T O_bar        P_bar = O_bar V^T

and what follows from P_bar is in `attention_steps_vjp.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.attention_steps import (
    allowed_sum,
    attention_scores,
    dropout_factor,
    fill_empty_rows,
    pair_products,
    query_blocks,
    repeat_heads,
    softmax,
    visible_pairs,
)
from reference_numpy.attention_steps_vjp import attention_scores_vjp, sinks_vjp, softmax_vjp, sum_broadcast, sum_groups
from reference_numpy.dtypes import widen
from reference_numpy.masks import checked_mask
from reference_numpy.tape import gradient_of
from specification import checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.masks import Mask

__all__ = [
    "AttentionGradients",
    "attention_logsumexp_vjp",
    "attention_vjp",
    "attention_weights_vjp",
    "merge_attention_vjp",
]


class AttentionGradients(NamedTuple):
    """Gradients in the shapes and dtypes of the arguments; None for an argument that was not given."""

    query: Any
    key: Any
    value: Any
    bias: Any
    sinks: Any


def pullback(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray | None,
    cotangent: np.ndarray,
    kind: str,
    *,
    mask: Mask | Bool[np.ndarray, "..."] | None,
    bias: np.ndarray | None,
    scale: float | None,
    softcap: float | None,
    sinks: np.ndarray | None,
    dropout_keep: np.ndarray | None = None,
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
            assert value is not None
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


@gradient_of("query", "key", "value", "bias", "sinks")
@np.errstate(all="ignore")
def attention_vjp(
    query: Float[np.ndarray, "B H Q D"],
    key: Float[np.ndarray, "B G K D"],
    value: Float[np.ndarray, "B G K V"],
    cotangent: Float[np.ndarray, "B H Q V"],
    *,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    dropout_keep: Bool[np.ndarray, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> AttentionGradients:
    """Compute the gradients of query, key, value, bias and sinks (ATT-12).

    Args:
        query, key, value: As in `attention`.
        cotangent: Gradient with respect to the result of `attention`, [B, H, Q, V], in its dtype.
        mask, bias, scale, softcap, sinks, dropout_keep, dropout_rate, empty_rows: As in `attention`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `attention`, and for a cotangent in another shape or dtype than its result.
    """
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
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
    empty_rows: str = "zero",
) -> AttentionGradients:
    """Compute the gradients of query, key, bias and sinks (ATT-12).

    Args:
        query, key: As in `attention_weights`.
        cotangent: Gradient with respect to the result of `attention_weights`, [B, H, Q, K], in its dtype.
        mask, bias, scale, softcap, sinks, empty_rows: As in `attention_weights`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `attention_weights`, and for a cotangent in another shape or dtype than its result.
    """
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
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    bias: Float[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[np.ndarray, "H"] | None = None,
) -> AttentionGradients:
    """Compute the gradients of query, key, bias and sinks (ATT-12).

    Args:
        query, key: As in `attention_logsumexp`.
        cotangent: Gradient with respect to the result of `attention_logsumexp`, [B, H, Q], in its dtype.
        mask, bias, scale, softcap, sinks: As in `attention_logsumexp`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `attention_logsumexp`, and for a cotangent in another shape or dtype than its
            result.
    """
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
    """Compute the gradients of every part's output and log-sum-exp (ATT-12).

    Args:
        outputs, logsumexps: As in `merge_attention`.
        output_cotangent: Gradient with respect to the merged output.
        logsumexp_cotangent: Gradient with respect to the merged log-sum-exp.

    Returns:
        A list for outputs and a list for logsumexps, in their shapes and dtypes.

    Raises:
        TypeError, ValueError: As in `merge_attention`, and for a cotangent in another shape or dtype than its result.
    """
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
