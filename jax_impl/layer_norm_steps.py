"""The steps of layer norm: deviations from the mean, and the affine step (NORM-1 to NORM-5, NORM-8)."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Float

from jax_impl.dtypes import compiled, widen


@partial(jax.jit, static_argnums=1)
def deviations(x: Float[jax.Array, "..."], axes: tuple[int, ...]) -> Float[jax.Array, "..."]:
    """x - mean, taken twice (NORM-3, NORM-4).

    The result does not depend on which center is taken off first, so no gradient runs through it: it would be 0, but
    the rounding errors of the whole row would gather in the first element.
    """
    corner: Any = (..., *(slice(0, 1) for _ in axes))
    first = x[corner]
    center = stop_gradient(first + jnp.mean(x - first, axis=axes, keepdims=True))
    deviation = x - center
    return deviation - jnp.mean(deviation, axis=axes, keepdims=True)


def multiplier(weight: Float[jax.Array, "*N"], plus_one: bool) -> Float[jax.Array, "*N"]:
    """Weight, or 1 + weight, in the compute dtype: a 16-bit sum would lose the digits of a small weight (NORM-8)."""
    return 1 + widen(weight) if plus_one else widen(weight)


@compiled
def affine(
    normalized: Float[jax.Array, "..."], weight: Float[jax.Array, "*N"], bias: Float[jax.Array, "*N"] | None
) -> Float[jax.Array, "..."]:
    """normalized * weight + bias, unrounded."""
    output = normalized * widen(weight)
    return output if bias is None else output + widen(bias)


@compiled
def reference_layer_norm(
    x: Float[jax.Array, "..."],
    weight: Float[jax.Array, "*N"],
    bias: Float[jax.Array, "*N"] | None,
    eps: float | Float[jax.Array, ""],
) -> Float[jax.Array, "..."]:
    """Compute `layer_norm` for arguments that it has checked, without its last rounding."""
    axes = tuple(range(-weight.ndim, 0))
    deviation = deviations(widen(x), axes)
    variance = jnp.mean(jnp.square(deviation), axis=axes, keepdims=True)
    normalized = deviation / jnp.sqrt(variance + jnp.asarray(eps, variance.dtype))
    return affine(normalized, weight, bias)
