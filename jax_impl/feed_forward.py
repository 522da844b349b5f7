"""The position-wise feed-forward network in JAX (rule FFN-1; "Attention Is All You Need", section 3.3), and SiLU."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from jax_impl.attention_steps import dropout_factor
from jax_impl.dtypes import cast, compiled, widen
from jax_impl.multi_head_attention import linear
from specification import FeedForward, GatedFeedForward, checks

__all__ = ["feed_forward", "gated_feed_forward", "silu"]


def relu(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """max(x, 0). NaN stays NaN; the slope at 0 is 0, where that of jnp.maximum is 1/2."""
    return jax.nn.relu(x)


@compiled
def gelu(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """x * Phi(x), with the normal distribution function (Hendrycks and Gimpel, arXiv 1606.08415)."""
    return x * normal_distribution(x)


def normal_distribution(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """Phi(x) = erfc(-x / sqrt(2)) / 2, which keeps its digits for negative x, where 1 + erf(x / sqrt(2)) cancels."""
    return 0.5 * jax.lax.erfc(-x / math.sqrt(2))


@compiled
def gelu_tanh(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), the same paper's approximation."""
    return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def finite_size(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """|x|, and the largest number for infinity, which no 0 makes a NaN. NaN stays NaN; the slope at 0 is 1."""
    size = jnp.where(x >= 0, x, -x)
    return jnp.where(jnp.isinf(size), jnp.finfo(x.dtype).max, size)


@compiled
def silu_steps(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """x * sigmoid(x) = max(x, 0) - |x| * sigmoid(-|x|), in the dtype of x."""
    size = finite_size(x)
    root = jnp.exp(-0.5 * size)
    return jnp.where(x >= 0, x, 0) - size * root * root / (1 + root * root)


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu_steps}
"""By the name that a configuration has (FFN-1, FFN-2)."""


def feed_forward(
    parameters: FeedForward,
    x: Float[jax.Array, "... E"],
    *,
    activation: str = "relu",
    dropout_keep: Bool[jax.Array, "... F"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[jax.Array, "... E_out"]:
    """Compute outer(activation(inner(x))), each a linear projection, for every position on its own (FFN-1).

    `parameters` is a pytree as it stands. `activation` is static.

    Args:
        parameters: Two projections in the dtype of x, each with a weight [in, out].
        x: [..., E].
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        dropout_keep: [..., F], True = keep the activation. The caller draws it; only some dialects have it.
        dropout_rate: In [0, 1). Activations that are kept are divided by 1 - rate.

    Returns:
        A new array [..., E_out] in the dtype of x, to which each projection and the activation round.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.feed_forward(parameters, x, activation, dropout_keep, dropout_rate)
    hidden = ACTIVATIONS[activation](widen(linear(parameters.inner, x)))
    if dropout_keep is not None:
        hidden = hidden * dropout_factor(dropout_keep, dropout_rate, hidden.dtype)
    return linear(parameters.outer, cast(hidden, x.dtype))


def gated_feed_forward(
    parameters: GatedFeedForward,
    x: Float[jax.Array, "... E"],
    *,
    activation: str = "silu",
    dropout_keep: Bool[jax.Array, "... F"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[jax.Array, "... E_out"]:
    """Compute outer(activation(gate(x)) * inner(x)) for every position on its own (FFN-2; Shazeer, arXiv 2002.05202).

    `parameters` is a pytree as it stands. `activation` is static.

    Args:
        parameters: Three projections in the dtype of x, each with a weight [in, out].
        x: [..., E].
        activation: "silu", "gelu", "gelu_tanh" or "relu".
        dropout_keep: [..., F], True = keep the product. The caller draws it.
        dropout_rate: In [0, 1). Products that are kept are divided by 1 - rate.

    Returns:
        A new array [..., E_out] in the dtype of x, to which each projection and the product round.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.gated_feed_forward(parameters, x, activation, dropout_keep, dropout_rate)
    gate = ACTIVATIONS[activation](widen(linear(parameters.gate, x)))
    hidden = gate * widen(linear(parameters.inner, x))
    if dropout_keep is not None:
        hidden = hidden * dropout_factor(dropout_keep, dropout_rate, hidden.dtype)
    return linear(parameters.outer, cast(hidden, x.dtype))


def silu(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """Compute x * sigmoid(x) for every element, and round once (ACT-1).

    Args:
        x: An array of any shape, in float16, bfloat16, float32 or float64.

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: x is no array, or has another dtype.
    """
    checks.silu(x)
    return cast(silu_steps(widen(x)), x.dtype)
