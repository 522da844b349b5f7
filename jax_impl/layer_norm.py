"""Layer norm and its named variants in JAX (rules NORM-1 to NORM-8; Ba, Kiros and Hinton, arXiv 1607.06450).

All of them normalise over the trailing axes that `weight` names: for x [..., *N], weight and bias are [*N]. Dtypes as
in the definition; statistics and the affine step are kept in float32, or in float64 for float64, and rounded once.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jax_impl.dtypes import cast, widen
from jax_impl.layer_norm_steps import affine, deviations, multiplier, reference_layer_norm
from specification import checks

__all__ = ["layer_norm", "rms_norm", "standard_deviation_norm"]


def layer_norm(
    x: Float[jax.Array, "..."],
    weight: Float[jax.Array, "*N"],
    bias: Float[jax.Array, "*N"] | None,
    *,
    eps: float = 1e-5,
) -> Float[jax.Array, "..."]:
    """Compute (x - mean) / sqrt(variance + eps) * weight + bias, with the biased two-pass variance (NORM-1).

    eps may be traced.

    Args:
        x: [..., *N], in float16, bfloat16, float32 or float64.
        weight: [*N], the trailing axes that are normalised over, in the dtype of x or the wider one used inside.
        bias: As weight, or None.
        eps: At least 2**-126.

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.norm(x, weight, bias, eps)
    return cast(reference_layer_norm(x, weight, bias, eps), x.dtype)


def rms_norm(
    x: Float[jax.Array, "..."], weight: Float[jax.Array, "*N"], *, eps: float, plus_one: bool = False
) -> Float[jax.Array, "..."]:
    """Compute x / sqrt(mean(x^2) + eps) * weight (NORM-7; Zhang and Sennrich, arXiv 1910.07467).

    Args:
        x, weight, eps: As in `layer_norm`.
        plus_one: Whether 1 + weight stands in the place of weight, as in Gemma (NORM-8).

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    axes = checks.rms_norm(x, weight, eps, plus_one)
    wide = widen(x)
    return cast(rms_norm_steps(wide, widen(weight), eps, axes, plus_one), x.dtype)


@partial(jax.jit, static_argnums=(3, 4))
def rms_norm_steps(
    wide: Float[jax.Array, "..."],
    weight: Float[jax.Array, "*N"],
    eps: float | jax.Array,
    axes: tuple[int, ...],
    plus_one: bool,
) -> Float[jax.Array, "..."]:
    """`rms_norm` in the dtype in which everything is computed, without its last rounding."""
    square = jnp.mean(jnp.square(wide), axis=axes, keepdims=True)
    normalized = wide / jnp.sqrt(square + jnp.asarray(eps, square.dtype))
    return affine(normalized, multiplier(weight, plus_one), None)


def standard_deviation_norm(
    x: Float[jax.Array, "..."],
    weight: Float[jax.Array, "*N"],
    bias: Float[jax.Array, "*N"] | None,
    *,
    eps: float,
) -> Float[jax.Array, "..."]:
    """Compute (x - mean) / (deviation + eps) * weight + bias, with the unbiased deviation (NORM-7).

    Args:
        x, weight, bias, eps: As in `layer_norm`; weight has two elements at least.

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    axes = checks.standard_deviation_norm(x, weight, bias, eps)
    return cast(standard_deviation_norm_steps(widen(x), widen(weight), widen(bias), eps, axes), x.dtype)


@partial(jax.jit, static_argnums=4)
def standard_deviation_norm_steps(
    x: Float[jax.Array, "..."],
    weight: Float[jax.Array, "*N"],
    bias: Float[jax.Array, "*N"] | None,
    eps: float | jax.Array,
    axes: tuple[int, ...],
) -> Float[jax.Array, "..."]:
    """`standard_deviation_norm` in the dtype in which everything is computed, without its last rounding."""
    deviation = deviations(x, axes)
    variance = jnp.sum(jnp.square(deviation), axis=axes, keepdims=True) / (weight.size - 1)
    # The slope of the root at 0 is infinite; a constant row, whose deviation has no slope, must not come near it.
    constant = variance == 0
    spread = jnp.where(constant, 0, jnp.sqrt(jnp.where(constant, 1, variance)))
    normalized = deviation / (spread + jnp.asarray(eps, spread.dtype))
    return affine(normalized, weight, bias)
