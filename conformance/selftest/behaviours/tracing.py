"""What JAX invites: gradients stopped, other code where none are asked for, NaN in the gradient of a `where`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import jax_impl
from conformance.selftest.behaviours.behaviour import Behaviour, Function

if TYPE_CHECKING:
    from specification.masks import Mask


def attention(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask | jax.Array | None = None) -> Any:
    """jax_impl's."""
    return jax_impl.attention(query, key, value, mask=mask)


def stop_gradients(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask | jax.Array | None = None) -> Any:
    """No gradient flows through the weights."""
    return attention(jax.lax.stop_gradient(query), jax.lax.stop_gradient(key), value, mask=mask)


def use_one_where(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array | None = None) -> Any:
    """-inf is added; 0 in empty rows, but 0 * NaN in their gradient."""
    wide = query.dtype if query.dtype == jnp.float64 else jnp.float32
    key, value = (jnp.repeat(a, query.shape[1] // max(a.shape[1], 1), axis=1).astype(wide) for a in (key, value))
    highest = jax.lax.Precision.HIGHEST
    scores = jnp.einsum("bhid,bhjd->bhij", query.astype(wide), key, precision=highest) * query.shape[-1] ** -0.5
    if mask is None:
        weights = jax.nn.softmax(scores, axis=-1)
    else:
        weights = jax.nn.softmax(scores + jnp.where(mask, 0, -jnp.inf), axis=-1)
        weights = jnp.where(mask.any(axis=-1, keepdims=True), weights, 0)
    return jnp.einsum("bhij,bhjv->bhiv", weights, value, precision=highest).astype(query.dtype)


def narrow_inputs(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask | jax.Array | None = None) -> Any:
    """float64 is narrowed on the way in, as JAX does unless it is told otherwise."""
    narrow = (a.astype(jnp.float32) if a.dtype == jnp.float64 else a for a in (query, key, value))
    return attention(*narrow, mask=mask).astype(query.dtype)


def differ_without_derivatives(function: Function) -> Function:
    """Another function where no gradient is asked for: `jax.custom_vjp` calls it in no other case."""
    chosen = jax.custom_vjp(function)
    chosen.defvjp(
        lambda query, key, value, mask: jax.vjp(partial(attention, mask=mask), query, key, value),
        lambda pull, cotangent: (*pull(cotangent), None),
    )

    def forward(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask | jax.Array | None = None) -> Any:
        return chosen(query, key, value, mask)

    return forward


def make_behaviour(rule: str, name: str, function: Function) -> Behaviour:
    return Behaviour(rule, name, function, attention, arrays="jax")


BEHAVIOURS = (
    make_behaviour(
        "ATT-8",
        "no mask without gradients",
        differ_without_derivatives(lambda query, key, value, mask: attention(query, key, value)),
    ),
    make_behaviour("ATT-12", "gradient stopped at the weights", stop_gradients),
    make_behaviour("ATT-6", "one where for empty rows", use_one_where),
    make_behaviour("ATT-9", "float64 narrowed to float32", narrow_inputs),
)
