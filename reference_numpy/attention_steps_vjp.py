"""Gradients of the steps in `attention_steps.py`, by hand (ATT-12).

With P the weights, S the scores, L the log-sum-exp and a bar over a name for "gradient with respect to":

    S_bar = P * (P_bar - rowsum(P * P_bar)) + P * L_bar
    Q_bar = scale * S_bar K                                    K_bar = scale * S_bar^T Q

Every sum runs over the allowed pairs only, so a forbidden NaN reaches no gradient, and an empty row gives and receives
0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from reference_numpy.attention_steps import allowed_sum, pair_products, resolve_scale


def attention_scores_vjp(
    query: np.ndarray,
    key: np.ndarray,
    allowed: np.ndarray,
    cotangent: np.ndarray,
    *,
    scale: float | None,
    softcap: float | None,
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


def softmax_vjp(
    weights: np.ndarray, allowed: np.ndarray, weights_cotangent: np.ndarray, logsumexp_cotangent: np.ndarray
) -> Any:
    """Gradient of the scores: P * (P_bar - rowsum(P * P_bar) + L_bar), 0 where forbidden."""
    mean = np.sum(np.where(allowed, weights * weights_cotangent, 0), axis=-1, keepdims=True)
    return np.where(allowed, weights * (weights_cotangent - mean + logsumexp_cotangent[..., None]), 0)


def sinks_vjp(
    sinks: np.ndarray,
    logsumexp: np.ndarray,
    weights: np.ndarray,
    allowed: np.ndarray,
    weights_cotangent: np.ndarray,
    cotangent: np.ndarray,
) -> Any:
    """Gradient of the sinks: the sink's own weight times (L_bar - rowsum(P * P_bar)), summed over batch and queries."""
    mean = np.sum(np.where(allowed, weights * weights_cotangent, 0), axis=-1)
    # A sink of -inf weighs nothing, also in an empty row, where -inf - -inf would be NaN.
    weight = np.exp(np.where(sinks[:, None] == -np.inf, -np.inf, sinks[:, None] - logsumexp))
    return np.sum(weight * (cotangent - mean), axis=(0, 2))


def sum_groups(gradient: Float[np.ndarray, "B H K W"], key_heads: int) -> Float[np.ndarray, "B G K W"]:
    """Transpose of `repeat_heads`: the gradients of the query heads that read one key head, added up."""
    B, H, K, W = gradient.shape
    return gradient.reshape(B, key_heads, H // max(key_heads, 1), K, W).sum(axis=2)


def sum_broadcast(gradient: np.ndarray, like: np.ndarray) -> Any:
    """Transpose of broadcasting an array [Q, K] or [B or 1, H or 1, Q, K] over batch and heads."""
    shape = like.shape if like.ndim == 4 else (1, 1, *like.shape)
    axes = tuple(axis for axis in (0, 1) if shape[axis] == 1)
    return gradient.sum(axis=axes).reshape(like.shape)
