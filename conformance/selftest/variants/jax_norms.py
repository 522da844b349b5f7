"""Norms in JAX, differentiated by jax.vjp."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_impl.dtypes import widen


@jax.jit
def layer_norm_rsqrt(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """Deviations taken twice, and sums in whatever order XLA likes."""
    wide, axes = widen(x), tuple(range(-weight.ndim, 0))
    first = jax.lax.stop_gradient(wide[(..., *(slice(0, 1) for _ in axes))])
    once = wide - (first + jnp.mean(wide - first, axis=axes, keepdims=True))
    deviation = once - jnp.mean(once, axis=axes, keepdims=True)
    reciprocal = jax.lax.rsqrt(jnp.mean(deviation**2, axis=axes, keepdims=True) + eps)
    output = deviation * reciprocal * widen(weight)
    return (output if bias is None else output + widen(bias)).astype(x.dtype)


@jax.jit
def rms_norm_rsqrt(x: Any, weight: Any, *, eps: float) -> Any:
    wide, axes = widen(x), tuple(range(-weight.ndim, 0))
    reciprocal = jax.lax.rsqrt(jnp.mean(wide**2, axis=axes, keepdims=True) + eps)
    return (wide * reciprocal * widen(weight)).astype(x.dtype)
