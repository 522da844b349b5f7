"""Which algorithm computes an attention: the choice, and how to ask for it (`explain_engine`)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from jax_impl.engines.blocked import Inputs, Limits
from jax_impl.engines.varying import axes_of, vary
from jax_impl.masks import checked_mask
from specification import checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.engines import Choice, choose
from specification.masks import Mask

__all__ = ["explain_engine"]

LIMITS = Limits()
"""What "blocked" takes at once."""

SMALL = 2**20
"""Numbers up to which the reference engine is the faster one: they stay in the caches, and there is little to skip."""


def explain_engine(
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
) -> Choice:
    """Say which engine `attention` takes for the same arguments, why, and what hinders the others.

    Nothing is computed.

    Args:
        query, key, value, mask, bias, scale, softcap, sinks, dropout_keep, dropout_rate, empty_rows, engine: As in
            `attention`.

    Returns:
        The engine, the reason, and by engine what hinders it.

    Raises:
        TypeError, ValueError: As in `attention`.
    """
    checks.attention(
        query, key, value, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H)
    inputs = Inputs(query, key, value, mask, bias, scale, softcap, sinks)
    return engine_for(engine, inputs, dropout_keep, empty_rows)


def engine_for(engine: str, inputs: Inputs, dropout_keep: jax.Array | None, empty_rows: str) -> Choice:
    """The choice for arguments that were checked. It looks at shapes and options alone, never at numbers."""
    hindrances = {"fused": "JAX has no fused attention that keeps every rule"}
    if hindrance := hindrance_of_blocks(inputs, dropout_keep, empty_rows):
        return choose(engine, hindrances | {"blocked": hindrance}, "reference", hindrance)
    numbers = numbers_held(inputs)
    if numbers <= SMALL:
        return choose(engine, hindrances, "reference", f"it holds no more than {numbers} numbers at once")
    return choose(engine, hindrances, "blocked", f"{numbers} numbers need not be held at once")


def numbers_held(inputs: Inputs) -> int:
    """How many the reference engine makes beside its inputs: the scores, and the heads that it repeats."""
    (B, H, Q, D), (_, G, K, V) = inputs.query.shape, inputs.value.shape
    return int(B * H * K * (Q + (D + V if H > G else 0)))


def hindrance_of_blocks(inputs: Inputs, dropout_keep: jax.Array | None, empty_rows: str) -> str:
    if dropout_keep is not None:
        return "blocks have no dropout"
    if empty_rows != "zero":
        return f"blocks have no empty_rows={empty_rows!r}"
    if 0 in (*inputs.query.shape, *inputs.value.shape):
        return "there is nothing to divide into blocks"
    if any(isinstance(number, jax.core.Tracer) for number in (inputs.scale, inputs.softcap)):
        return "a traced scale or softcap may want a gradient, which blocks do not give"
    return ""


def in_blocks(inputs: Inputs) -> Inputs:
    """The same as arrays, for `jax_impl.engines.blocked`: the scale resolved (ATT-1), the bias in rank 4.

    In `jax.shard_map` all of them vary where one does.
    """
    dtype = compute_dtype_name(dtype_name(inputs.query))
    given = (inputs.query, inputs.key, inputs.value, inputs.bias, inputs.sinks)
    # Of an array that is one of JAX's, jnp.asarray would make a copy under jax.vjp, and of its gradient another.
    as_they_are = (array if array is None or isinstance(array, jax.Array) else jnp.asarray(array) for array in given)
    query, key, value, bias, sinks = as_they_are
    scale = 1 / math.sqrt(inputs.query.shape[-1]) if inputs.scale is None else inputs.scale
    bias = bias if bias is None or bias.ndim == 4 else bias[None, None]
    softcap = None if inputs.softcap is None else jnp.asarray(inputs.softcap, dtype)
    found = Inputs(query, key, value, inputs.mask, bias, jnp.asarray(scale, dtype), softcap, sinks)
    return Inputs(*vary(found, axes_of(found)))
