"""Attention in JAX, computed in other ways than the definition does, differentiated by jax.vjp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from jax_impl.attention_steps import allowed_sum, pair_products, repeat_heads, resolve_scale, visible_pairs
from jax_impl.dtypes import widen
from jax_impl.masks import checked_mask

if TYPE_CHECKING:
    from specification.masks import Mask

LOG2E = math.log2(math.e)


def scale_on_key(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: Mask | jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
) -> Any:
    """The scale on the key; normalised weights by jax.nn.softmax, in which the sink is one more column."""
    (B, H, Q, D), K, dtype = query.shape, key.shape[2], query.dtype
    allowed, bias = visible_pairs(checked_mask(mask, Q, K, B, H), widen(bias), (B, H, Q), K)
    query, key, value = widen(query), repeat_heads(widen(key), H), repeat_heads(widen(value), H)
    return attend(query, key, value, allowed, bias, widen(sinks), resolve_scale(scale, D), softcap).astype(dtype)


@jax.jit
def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    allowed: jax.Array,
    bias: jax.Array | None,
    sinks: jax.Array | None,
    scale: float | None,
    softcap: float | None,
) -> Any:
    scores = pair_products(query, key * jnp.asarray(scale, key.dtype), allowed)
    if softcap is not None:
        cap = jnp.asarray(softcap, scores.dtype)
        scores = cap * jnp.tanh(scores / cap)
    scores = scores if bias is None else scores + jnp.where(allowed, bias, 0)
    scores = jnp.where(allowed, scores, -jnp.inf)
    sink = jnp.full((query.shape[1],), -jnp.inf, scores.dtype) if sinks is None else sinks
    columns = jnp.concatenate([scores, jnp.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))], axis=-1)
    # A row of -inf throughout is left out of the softmax, which would make it NaN.
    nothing = jnp.all(columns == -jnp.inf, axis=-1, keepdims=True)
    maximum = stop_gradient(jnp.max(jnp.where(nothing, 0, columns), axis=-1, keepdims=True))
    shifted = (columns - maximum) * jnp.asarray(LOG2E, scores.dtype)
    exponentials = jnp.where(columns == -jnp.inf, 0, jnp.exp2(shifted))
    weights = exponentials / (jnp.sum(exponentials, axis=-1, keepdims=True) + nothing)
    return allowed_sum(jnp.where(allowed, weights[..., :-1], 0), value, allowed)
