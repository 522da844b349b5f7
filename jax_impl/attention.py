"""Attention in JAX (rules ATT-1 to ATT-14; "Attention Is All You Need", section 3.2).

The steps are in `attention_steps.py`, the faster way to the same result in `engines/`. Shapes and dtypes as in the
definition, and checked while tracing.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from jax_impl.attention_steps import (
    allowed_sum,
    attention_scores,
    fill_empty_rows,
    reference_attention,
    repeat_heads,
    resolve_scale,
    softmax,
    visible_pairs,
)
from jax_impl.dtypes import cast, require_dtype, widen
from jax_impl.engines import choice
from jax_impl.engines.blocked import Inputs, blocked_attention
from jax_impl.masks import checked_mask
from specification import checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.masks import Mask

__all__ = ["attention", "attention_logsumexp", "attention_weights", "merge_attention"]


def attention(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    value: Float[jax.Array, "B G K V"],
    *,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
    dropout_keep: Bool[jax.Array, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
    engine: str = "auto",
) -> Float[jax.Array, "B H Q V"]:
    """Compute softmax(softcap(scale * query . key) + bias) . value over the keys that the mask allows.

    The mask may be traced, and is a pytree. `empty_rows` is static. scale, softcap and dropout_rate may be traced;
    their values are checked only where they can be read.

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
        engine: "reference" is `reference_attention`, "blocked" the same in blocks with a memory of O(Q + K), "auto" the
            faster of those that take the call (`explain_engine`).

    Returns:
        A new array [B, H, Q, V] in the dtype of query.

    Raises:
        TypeError: Dtypes or structures that are not as described; float64 without `jax.enable_x64`.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.attention(
        query, key, value, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H)
    inputs = Inputs(query, key, value, mask, bias, scale, softcap, sinks)
    require_dtype(compute_dtype_name(dtype_name(query)))
    chosen = choice.engine_for(engine, inputs, dropout_keep, empty_rows).engine
    if chosen == "reference":
        output, _ = reference_attention(
            query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
            dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
        )  # fmt: skip
    else:
        output, _ = blocked_attention(choice.LIMITS, choice.in_blocks(inputs))
    return cast(output, query.dtype)


def attention_weights(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    *,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
    empty_rows: str = "zero",
) -> Float[jax.Array, "B H Q K"]:
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
    allowed, bias = visible_pairs(mask, bias, (B, H, Q), K)
    scores = attention_scores(
        query, key, allowed, bias=bias, scale=resolve_scale(scale, query.shape[-1]), softcap=softcap
    )
    weights, _ = softmax(scores, allowed, sinks)
    weights, _ = fill_empty_rows(weights, allowed, empty_rows)
    return cast(weights, dtype)


def attention_logsumexp(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    *,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
) -> Float[jax.Array, "B H Q"]:
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
    allowed, bias = visible_pairs(mask, bias, (B, H, Q), K)
    scores = attention_scores(
        query, key, allowed, bias=bias, scale=resolve_scale(scale, query.shape[-1]), softcap=softcap
    )
    _, logsumexp = softmax(scores, allowed, sinks)
    return logsumexp


def merge_attention(
    outputs: Sequence[Float[jax.Array, "B H Q V"]], logsumexps: Sequence[Float[jax.Array, "B H Q"]]
) -> tuple[Float[jax.Array, "B H Q V"], Float[jax.Array, "B H Q"]]:
    """Merge results of `attention` over disjoint sets of keys into those over all keys (ATT-14).

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
    # Compiled with the rest, the gradient would be computed anew for each part.
    parts = jnp.stack([widen(output) for output in outputs], axis=-2)
    scores = jnp.stack([widen(logsumexp) for logsumexp in logsumexps], axis=-1)
    output, logsumexp = merge(parts, scores)
    return cast(output, outputs[0].dtype), logsumexp


@jax.jit
def merge(
    parts: Float[jax.Array, "B H Q P V"], scores: Float[jax.Array, "B H Q P"]
) -> tuple[Float[jax.Array, "B H Q V"], Float[jax.Array, "B H Q"]]:
    """`merge_attention` of P parts in the dtype in which everything is computed, without its last rounding."""
    # Merging is attention once more: one query, one key for each part, the parts' log-sum-exps as its scores.
    seen = scores != -jnp.inf
    weights, logsumexp = softmax(jnp.where(seen, scores, 0), seen)
    output = allowed_sum(weights[..., None, :], parts, seen[..., None, :])[..., 0, :]
    return output, logsumexp
