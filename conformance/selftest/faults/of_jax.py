"""Faults that JAX invites: gradients stopped, NaN in the gradient of a `where`. They are made from `jax_impl`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jax_impl
from conformance.selftest.faults.fault import Fault


def attention(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """jax_impl's."""
    return jax_impl.attention(query, key, value, mask=mask)


def planted(rule: str, name: str, function: Any) -> Fault:
    return Fault(rule, name, "attention", function, attention, "jax")


def stopped(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """No gradient through the weights."""
    return attention(jax.lax.stop_gradient(query), jax.lax.stop_gradient(key), value, mask=mask)


def one_where(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
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


def float32_throughout(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """float64 is narrowed on the way in."""
    narrow = (a.astype(jnp.float32) if a.dtype == jnp.float64 else a for a in (query, key, value))
    return attention(*narrow, mask=mask).astype(query.dtype)


def derived(query: Any, key: Any, value: Any, mask: Any) -> Any:
    return jax.vjp(partial(attention, mask=mask), query, key, value)


def pulled_back(pull: Any, cotangent: Any) -> Any:
    return *pull(cotangent), None


def without_derivatives(function: Any) -> Any:
    """Another function where no gradient is asked for: `jax.custom_vjp` calls it in no other case."""
    chosen = jax.custom_vjp(function)
    chosen.defvjp(derived, pulled_back)

    def forward(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return chosen(query, key, value, mask)

    return forward


def unmasked(query: Any, key: Any, value: Any, mask: Any) -> Any:
    return attention(query, key, value)


def first_key_heads(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Every query head reads the first key head."""
    return attention(query, *(array[:, : min(array.shape[1], 1)] for array in (key, value)), mask=mask)


FAULTS = (
    planted("ATT-8", "no mask without gradients", without_derivatives(unmasked)),
    planted("ATT-8", "the first key head alone without gradients", without_derivatives(first_key_heads)),
    planted("ATT-12", "gradient stopped at the weights", stopped),
    planted("ATT-6", "one where for empty rows", one_where),
    planted("ATT-9", "float64 narrowed to float32", float32_throughout),
)
