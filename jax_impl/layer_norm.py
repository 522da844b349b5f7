"""Layer norm and its named variants in JAX (rules NORM-1 to NORM-7; Ba, Kiros and Hinton, arXiv 1607.06450).

All of them normalise over the trailing axes that `weight` names: for x [..., *N], weight and bias are [*N]. Dtypes as
in the definition; statistics and the affine step are kept in float32, or in float64 for float64, and rounded once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Float

from jax_impl.attention import cast, compiled, widen
from specification import checks


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


def layer_norm(
    x: Float[jax.Array, "..."],
    weight: Float[jax.Array, "*N"],
    bias: Float[jax.Array, "*N"] | None,
    *,
    eps: float = 1e-5,
) -> Float[jax.Array, "..."]:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the biased two-pass variance (NORM-1).

    eps may be traced. Returns an array in the shape and dtype of x.
    """
    axes = checks.norm(x, weight, bias, eps)
    deviation = deviations(widen(x), axes)
    variance = jnp.mean(jnp.square(deviation), axis=axes, keepdims=True)
    normalized = deviation / jnp.sqrt(variance + jnp.asarray(eps, variance.dtype))
    return cast(affine(normalized, weight, bias), x.dtype)


def rms_norm(x: Float[jax.Array, "..."], weight: Float[jax.Array, "*N"], *, eps: float) -> Float[jax.Array, "..."]:
    """x / sqrt(mean(x^2) + eps) * weight (NORM-7; Zhang and Sennrich, arXiv 1910.07467).

    Returns an array in the shape and dtype of x.
    """
    axes = checks.norm(x, weight, None, eps)
    wide = widen(x)
    square = jnp.mean(jnp.square(wide), axis=axes, keepdims=True)
    normalized = wide / jnp.sqrt(square + jnp.asarray(eps, square.dtype))
    return cast(affine(normalized, weight, None), x.dtype)


def standard_deviation_norm(
    x: Float[jax.Array, "..."],
    weight: Float[jax.Array, "*N"],
    bias: Float[jax.Array, "*N"] | None,
    *,
    eps: float,
) -> Float[jax.Array, "..."]:
    """(x - mean) / (deviation + eps) * weight + bias, with the unbiased deviation (NORM-7).

    Returns an array in the shape and dtype of x.
    """
    axes = checks.standard_deviation_norm(x, weight, bias, eps)
    deviation = deviations(widen(x), axes)
    variance = jnp.sum(jnp.square(deviation), axis=axes, keepdims=True) / (weight.size - 1)
    # The slope of the root at 0 is infinite; a constant row, whose deviation has no slope, must not come near it.
    constant = variance == 0
    spread = jnp.where(constant, 0, jnp.sqrt(jnp.where(constant, 1, variance)))
    normalized = deviation / (spread + jnp.asarray(eps, spread.dtype))
    return cast(affine(normalized, weight, bias), x.dtype)


@compiled
def affine(
    normalized: Float[jax.Array, "..."], weight: Float[jax.Array, "*N"], bias: Float[jax.Array, "*N"] | None
) -> Float[jax.Array, "..."]:
    """normalized * weight + bias, unrounded."""
    output = normalized * widen(weight)
    return output if bias is None else output + widen(bias)
