"""Multi-head attention in JAX (rules MHA-1, MHA-2; "Attention Is All You Need", section 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from jax_impl.attention import attention
from jax_impl.dtypes import HIGHEST, cast, compiled, require_dtype, widen
from specification import Linear, MultiHeadAttention, checks
from specification.dtypes import dtype_name
from specification.masks import Mask

__all__ = ["multi_head_attention"]


@compiled
def linear(parameters: Linear, x: Float[jax.Array, "... I"]) -> Float[jax.Array, "... O"]:
    """x @ weight + bias, rounded once to the dtype of x (MHA-1)."""
    output = jnp.matmul(widen(x), widen(parameters.weight), precision=HIGHEST)
    if parameters.bias is not None:
        output = output + widen(parameters.bias)
    return cast(output, x.dtype)


def join_heads(projections: Linear | Sequence[Linear]) -> Linear:
    """One projection out of per-head projections: their columns side by side, in head order (MHA-2)."""
    if isinstance(projections, Linear):
        return projections
    checks.join_heads(projections)
    require_dtype(dtype_name(projections[0].weight))
    weight = jnp.concatenate([head.weight for head in projections], axis=1)
    if projections[0].bias is None:
        return Linear(weight)
    return Linear(weight, jnp.concatenate([head.bias for head in projections]))


def fused(parameters: MultiHeadAttention) -> Any:
    """The parameters with one projection of all heads in the place of each list."""
    query, key, value = map(join_heads, parameters[:3])
    return parameters._replace(query=query, key=key, value=value)


@partial(jax.jit, static_argnums=1)
def split_heads(x: Float[jax.Array, "B T HW"], num_heads: int) -> Float[jax.Array, "B H T W"]:
    """Head h is the h-th block of consecutive columns (MHA-1)."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)


@jax.jit
def concatenate_heads(x: Float[jax.Array, "B H T W"]) -> Float[jax.Array, "B T HW"]:
    """The heads' columns side by side again, in order."""
    B, H, T, width = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * width)


def multi_head_attention(
    parameters: MultiHeadAttention,
    query: Float[jax.Array, "B Q E"],
    key: Float[jax.Array, "B K E_key"],
    value: Float[jax.Array, "B K E_value"],
    *,
    num_heads: int,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
    dropout_keep: Bool[jax.Array, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> Float[jax.Array, "B Q E_out"]:
    """Project query, key and value, attend in every head, and project what the heads give (MHA-1, MHA-2).

    `parameters` is a pytree as it stands, so that `jax.grad` gives its gradients in the same structure. num_heads is
    static.

    Args:
        parameters: Four projections in the dtype of query, each with a weight [in, out]. Instead of one projection,
            query, key and value may have a list with one for each head.
        query: [B, Q, E].
        key: [B, K, E_key].
        value: [B, K, E_value].
        num_heads: H, the number of query heads.
        mask, bias, scale, softcap, sinks, dropout_keep, dropout_rate, empty_rows: As in `attention`.

    Returns:
        A new array [B, Q, E_out] in the dtype of query.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, MultiHeadAttention)
    projections: Any = fused(parameters)
    H, G, _ = checks.multi_head_attention(parameters, projections, query, key, value, num_heads)
    output = attention(
        split_heads(linear(projections.query, query), H),
        split_heads(linear(projections.key, key), G),
        split_heads(linear(projections.value, value), G),
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout_keep=dropout_keep,
        dropout_rate=dropout_rate,
        empty_rows=empty_rows,
    )
    return linear(projections.output, concatenate_heads(output))
