"""Attention over some of the keys, to be merged (ATT-14), and its gradients once all are merged, by every engine.

With output O and log-sum-exp L of all keys, what some of them add to the gradients follows from their scores alone:

    P = exp(S - L)      V_bar = P^T O_bar      S_bar = P (O_bar V^T - mean)      mean = rowsum(O_bar * O)

Nothing here may have size 0. A bias has rank 4. There are no sinks: a sink belongs to one part, or to none of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl.attention_steps import (
    allowed_sum,
    attention_scores,
    pair_products,
    reference_attention,
    repeat_heads,
    resolve_scale,
    visible_pairs,
)
from jax_impl.dtypes import widen
from jax_impl.engines import choice
from jax_impl.engines.blocked import Inputs, backward, blocked_attention


def forward_of_part(engine: str, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """Output [B, H, Q, V] and log-sum-exp [B, H, Q] over these keys, in the dtype in which everything is computed."""
    if engine == "reference":
        return reference_attention(**inputs._asdict())
    output, logsumexp = blocked_attention(choice.LIMITS, choice.in_blocks(inputs))
    return output, jnp.sum(logsumexp, axis=-1)


class Results(NamedTuple):
    """What some queries have over all keys."""

    output: jax.Array
    logsumexp: jax.Array
    mean: jax.Array  # rowsum(cotangent * output)
    cotangent: jax.Array


def gradients_of_part(engine: str, inputs: Inputs, results: Results) -> Inputs:
    """What these keys add to the gradients of query, key, value and bias, in their places, and not rounded."""
    output, logsumexp, _, cotangent = results
    if engine == "reference":
        return gradients_from_logsumexp(inputs, results)
    sums = jnp.stack([logsumexp, jnp.zeros_like(logsumexp)], axis=-1)
    found = backward(choice.LIMITS, choice.in_blocks(inputs), output, sums, widen(cotangent), jnp.zeros_like(sums))
    return found._replace(scale=None, softcap=None)


def gradients_from_logsumexp(inputs: Inputs, results: Results) -> Inputs:
    """The formula above."""
    _, logsumexp, mean, cotangent = results
    (B, H, Q, D), K = inputs.query.shape, inputs.key.shape[2]
    allowed, _ = visible_pairs(inputs.mask, widen(inputs.bias), (B, H, Q), K)

    def scores_and_values(query: Any, key: Any, value: Any, bias: Any) -> tuple[Any, Any]:
        _, wide_bias = visible_pairs(inputs.mask, bias, (B, H, Q), K)
        scores = attention_scores(
            query, repeat_heads(key, H), allowed,
            bias=wide_bias, scale=resolve_scale(inputs.scale, D), softcap=inputs.softcap,
        )  # fmt: skip
        return scores, repeat_heads(value, H)

    given = (widen(array) for array in (inputs.query, inputs.key, inputs.value, inputs.bias))
    # JAX goes on from the scores: through the softcap, to heads that are shared and axes that are broadcast.
    (scores, value), pullback = jax.vjp(scores_and_values, *given)
    # A row without keys has a log-sum-exp of -inf; so has one whose scores are all -inf, with weights of 0.
    logsumexp = jnp.where(logsumexp == -jnp.inf, 0, logsumexp)[..., None]
    weights = jnp.where(allowed, jnp.exp(scores - logsumexp), 0)
    cotangent = widen(cotangent)
    weights_bar = pair_products(cotangent, value, allowed)
    scores_bar = jnp.where(allowed, weights * (weights_bar - mean[..., None]), 0)
    query, key, value, bias = pullback((scores_bar, allowed_sum(weights.mT, cotangent, allowed.mT)))
    return Inputs(query, key, value, None, bias, None, None, None)
