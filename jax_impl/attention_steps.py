"""The steps of attention in JAX (MASK-7, ATT-1 to ATT-11), as `reference_numpy/attention_steps.py` defines them.

Gradients are `jax.grad`'s, through two products that know the mask (`pair_products`, `allowed_sum`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Bool, Float

from jax_impl.dtypes import HIGHEST, widen
from jax_impl.masks import allowed_pairs
from specification.masks import Mask

# The steps are compiled one by one, for calls outside jax.jit. Eager JAX compiles every operation for every new shape,
# and one call of attention with its gradients has about ninety of them. Compiled as one they would be compiled anew for
# every new combination of shapes, mask and options: with what is in the cache from other calls that takes more than
# twice as long.


@jax.custom_vjp
@jax.jit
def pair_products(
    left: Float[jax.Array, "*lead Q D"],
    right: Float[jax.Array, "*lead K D"],
    allowed: Bool[jax.Array, "*#lead #Q #K"],
) -> Float[jax.Array, "*lead Q K"]:
    """left . right for the allowed pairs, and 0 for the others, whatever they hold (MASK-7)."""
    return jnp.where(allowed, jnp.matmul(left, right.mT, precision=HIGHEST), 0)


@jax.custom_vjp
@jax.jit
def allowed_sum(
    weights: Float[jax.Array, "*lead Q K"],
    values: Float[jax.Array, "*lead K V"],
    allowed: Bool[jax.Array, "*#lead #Q #K"],
) -> Float[jax.Array, "*lead Q V"]:
    """weights @ values, summed over the allowed keys only; `weights` is 0 at the others.

    The sum runs over the finite values, since 0 * NaN = NaN, and an entry that an allowed NaN or infinity reaches
    becomes NaN (ATT-10). Both are always computed: a traced function cannot look whether there is any.
    """
    finite = jnp.isfinite(values)
    output = jnp.matmul(weights, jnp.where(finite, values, 0), precision=HIGHEST)
    allowed = jnp.broadcast_to(allowed, weights.shape).astype(values.dtype)
    reached = jnp.matmul(allowed, (~finite).astype(values.dtype), precision=HIGHEST) > 0
    return jnp.where(reached, jnp.nan, output)


# Each of the two is the other's gradient. JAX's own rule for a product would multiply the zeros of forbidden pairs by
# the NaN behind them. Reverse mode may be nested; the price is that forward mode has no rule.


@jax.jit
def pair_products_backward(
    saved: tuple[jax.Array, jax.Array, jax.Array], cotangent: Float[jax.Array, "*lead Q K"]
) -> tuple[Any, Any, None]:
    """The gradients of left and right."""
    left, right, allowed = saved
    cotangent = jnp.where(allowed, cotangent, 0)
    return allowed_sum(cotangent, right, allowed), allowed_sum(cotangent.mT, left, allowed.mT), None


@jax.jit
def allowed_sum_backward(
    saved: tuple[jax.Array, jax.Array, jax.Array], cotangent: Float[jax.Array, "*lead Q V"]
) -> tuple[Any, Any, None]:
    """The gradients of weights and values."""
    weights, values, allowed = saved
    return pair_products(cotangent, values, allowed), allowed_sum(weights.mT, cotangent, allowed.mT), None


pair_products.defvjp(lambda *inputs: (pair_products(*inputs), inputs), pair_products_backward)
allowed_sum.defvjp(lambda *inputs: (allowed_sum(*inputs), inputs), allowed_sum_backward)


@jax.jit
def attention_scores(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B H K D"],
    allowed: Bool[jax.Array, "#B #H #Q #K"],
    *,
    bias: Float[jax.Array, "#B #H #Q #K"] | None,
    scale: float | jax.Array,
    softcap: float | jax.Array | None,
) -> Float[jax.Array, "B H Q K"]:
    """softcap(scale * query . key) + bias for the allowed pairs, 0 for the others (ATT-1 to ATT-4).

    scale: a number always (`resolve_scale`), so that what is compiled serves calls with and without one.
    """
    # The scale is on the query: of a product and the difference from its maximum XLA makes one rounding, and a large
    # score would lie far from the maximum that was rounded.
    query = query * jnp.asarray(scale, query.dtype)
    scores = pair_products(query, key, allowed)
    if softcap is not None:
        cap = jnp.asarray(softcap, scores.dtype)
        scores = cap * tanh(scores / cap)
    if bias is not None:
        scores = scores + jnp.where(allowed, bias, 0)
    return scores


@jax.custom_jvp
def tanh(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """tanh with the slope 1 - y^2; that of jnp.tanh, (g + g y) (1 - y), is NaN for an infinite gradient g and y < 0."""
    return jnp.tanh(x)


tanh.defjvps(lambda tangent, y, x: tangent * (1 - y**2))


@jax.jit
def softmax(
    scores: Float[jax.Array, "B H Q K"],
    allowed: Bool[jax.Array, "#B #H #Q #K"],
    sinks: Float[jax.Array, "H"] | None = None,
) -> tuple[Float[jax.Array, "B H Q K"], Float[jax.Array, "B H Q"]]:
    """Softmax over the allowed keys, and its log-sum-exp (ATT-5, ATT-6).

    No gradient runs through the maximum: it cancels out of both results, and would only leave rounding errors behind.
    """
    maximum = jnp.max(stop_gradient(scores), axis=-1, where=allowed, initial=-jnp.inf, keepdims=True)
    if sinks is not None:
        maximum = jnp.maximum(maximum, stop_gradient(sinks)[:, None, None])
    # An empty row's maximum is -inf; a finite number in its place avoids inf - inf and changes nothing else.
    maximum = jnp.where(maximum == -jnp.inf, 0, maximum)
    # Subtracting the maximum leaves the quotient as it is and keeps exp from overflowing.
    exponentials = jnp.exp(jnp.where(allowed, scores - maximum, -jnp.inf))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sinks[:, None, None] - maximum)
    # The total of an empty row is replaced before anything divides by it or takes its logarithm: selecting afterwards
    # would leave 0 * inf = NaN in the gradient.
    empty = total == 0
    total = jnp.where(empty, 1, total)
    weights = jnp.where(allowed, exponentials / total, 0)
    return weights, jnp.where(empty, -jnp.inf, maximum + jnp.log(total))[..., 0]


def fill_empty_rows(
    weights: Float[jax.Array, "B H Q K"], allowed: Bool[jax.Array, "#B #H #Q #K"], empty_rows: str
) -> tuple[Float[jax.Array, "B H Q K"], Bool[jax.Array, "#B #H #Q #K"]]:
    """Weights of the rows that may attend to nothing, and the pairs over which values are then summed (ATT-6)."""
    if empty_rows == "zero":
        return weights, allowed
    empty = ~jnp.any(jnp.broadcast_to(allowed, weights.shape), axis=-1, keepdims=True)
    filling = jnp.nan if empty_rows == "nan" else 1 / max(weights.shape[-1], 1)
    return jnp.where(empty, filling, weights), allowed | empty


def resolve_scale(scale: float | jax.Array | None, width: int) -> Any:
    """1 / sqrt(D) unless another scale is given (ATT-1)."""
    return 1 / math.sqrt(width) if scale is None else scale


@partial(jax.jit, static_argnums=1)
def repeat_heads(array: Float[jax.Array, "B G K W"], num_heads: int) -> Float[jax.Array, "B H K W"]:
    """One key or value head for every query head: query head h reads head h // (H / G) (ATT-7)."""
    return jnp.repeat(array, num_heads // max(array.shape[1], 1), axis=1)


@partial(jax.jit, static_argnums=(2, 3))
def visible_pairs(
    mask: Mask | None,
    bias: Float[jax.Array, "..."] | None,
    query_shape: tuple[int, int, int],
    key_length: int,
) -> tuple[Bool[jax.Array, "B H Q K"], Float[jax.Array, "B H Q K"] | None]:
    """Which pairs count, and the bias; -inf in the bias forbids a pair (ATT-3).

    Both come in their full shape: outside `jax.jit` JAX compiles each of the pieces anew for every shape it meets.
    """
    shape = (*query_shape, key_length)
    allowed = jnp.broadcast_to(allowed_pairs(mask, query_shape[2], key_length), shape)
    if bias is None:
        return allowed, None
    bias = jnp.broadcast_to(bias if bias.ndim == 4 else bias[None, None], shape)
    return allowed & (bias != -jnp.inf), bias


def dropout_factor(keep: Bool[jax.Array, "..."], rate: float | jax.Array, dtype: DTypeLike) -> Float[jax.Array, "..."]:
    """keep / (1 - rate), with which weights are multiplied; no mask, so 0 * NaN is NaN (ATT-11)."""
    return jnp.where(keep, 1 / (1 - jnp.asarray(rate, dtype)), 0)


def reference_attention(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    value: Float[jax.Array, "B G K V"],
    *,
    mask: Mask | None,
    bias: Float[jax.Array, "..."] | None,
    scale: float | None,
    softcap: float | None,
    sinks: Float[jax.Array, "H"] | None,
    dropout_keep: Bool[jax.Array, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> tuple[Float[jax.Array, "B H Q V"], Float[jax.Array, "B H Q"]]:
    """Compute `attention`, and its log-sum-exp, for arguments that it has checked, without the last rounding.

    All [B, H, Q, K] scores stand in memory.
    """
    (B, H, Q, _), K = query.shape, key.shape[2]
    query, key, value = widen(query), repeat_heads(widen(key), H), repeat_heads(widen(value), H)
    bias, sinks = widen(bias), widen(sinks)
    allowed, bias = visible_pairs(mask, bias, (B, H, Q), K)
    scores = attention_scores(
        query, key, allowed, bias=bias, scale=resolve_scale(scale, query.shape[-1]), softcap=softcap
    )
    weights, logsumexp = softmax(scores, allowed, sinks)
    weights, reach = fill_empty_rows(weights, allowed, empty_rows)
    if dropout_keep is not None:
        weights = weights * dropout_factor(dropout_keep, dropout_rate, weights.dtype)
    return allowed_sum(weights, value, reach), logsumexp
