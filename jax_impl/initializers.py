"""Initial weights made of random numbers that the caller draws, in JAX (rule INIT-1)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jax_impl.dtypes import cast, require_dtype, widen
from jax_impl.masks import readable
from specification import Linear, checks
from specification.dtypes import dtype_name

__all__ = ["embedding_default", "linear_default", "xavier_uniform"]


def spread(name: str, uniform: Float[jax.Array, "..."], limit: float) -> Any:
    """(2 u - 1) limit for u in [0, 1): numbers in [-limit, limit), rounded once."""
    wide = widen(uniform)
    checks.uniform_numbers(name, readable(wide))
    return cast((2 * wide - 1) * limit, uniform.dtype)


def linear_default(weight: Float[jax.Array, "I O"], bias: Float[jax.Array, "O"] | None = None) -> Linear:
    """Make a projection as `torch.nn.Linear` starts: uniform in [-1 / sqrt(in), 1 / sqrt(in)) (INIT-1).

    `torch.nn.Linear` calls `kaiming_uniform_` with a = sqrt(5), after He et al., arXiv 1502.01852, which comes to this.

    Args:
        weight: [in, out], random numbers u in [0, 1).
        bias: [out], the same, or None.

    Returns:
        A `Linear` of (2 u - 1) / sqrt(in), in the dtype of the numbers, rounded once.

    Raises:
        TypeError: An array of another dtype.
        ValueError: Shapes that do not fit, no rows, or numbers outside [0, 1).
    """
    checks.linear_numbers(weight, bias)
    limit = 1 / math.sqrt(weight.shape[0])
    return Linear(spread("weight", weight, limit), None if bias is None else spread("bias", bias, limit))


def xavier_uniform(uniform: Float[jax.Array, "I O"], *, gain: float = 1.0) -> Float[jax.Array, "I O"]:
    """Make a weight that is uniform in [-a, a) with a = gain sqrt(6 / (in + out)) (INIT-1).

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks" (2010), equation 16.

    Args:
        uniform: [in, out], random numbers u in [0, 1).
        gain: At least 0.

    Returns:
        (2 u - 1) a, in the dtype of the numbers, rounded once.

    Raises:
        TypeError: An array of another dtype.
        ValueError: Another shape or gain, no rows, or numbers outside [0, 1).
    """
    checks.linear_numbers(uniform)
    checks.require_nonnegative("gain", gain)
    return spread("uniform", uniform, gain * math.sqrt(6 / sum(uniform.shape)))


def embedding_default(normal: Float[jax.Array, "N E"], *, padding: int | None = None) -> Float[jax.Array, "N E"]:
    """Make a table as `torch.nn.Embedding` starts: standard normal numbers as they are, and 0 for padding (INIT-1).

    Args:
        normal: [N, E], random numbers of mean 0 and deviation 1.
        padding: The row of the token for padding, which becomes 0, or None.

    Returns:
        A new array [N, E] in the dtype of the numbers.

    Raises:
        TypeError: An array of another dtype.
        ValueError: Another shape, or a row that is not there.
    """
    checks.embedding_numbers(normal, padding)
    require_dtype(dtype_name(normal))
    rows = jnp.arange(normal.shape[0])[:, None]
    return jnp.where(rows == (-1 if padding is None else padding), jnp.zeros_like(normal), normal)
