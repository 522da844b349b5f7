"""Position encodings in JAX (rules POS-1, POS-2; "Attention Is All You Need", section 3.5)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jax_impl.dtypes import require_dtype
from jax_impl.embedding import take_rows
from specification import checks
from specification.dtypes import dtype_name
from specification.positions import angular_frequencies

__all__ = ["learned_positions", "sinusoidal_positions"]


def sinusoidal_positions(
    length: int, width: int, *, offset: int = 0, exponent: str = "shared", dtype: str = "float32"
) -> Float[jax.Array, "length width"]:
    """Compute PE[p, 2i] = sin(p / 10000^(2i/E)) and PE[p, 2i+1] = cos of the same angle (POS-1).

    With a traced offset the angles are computed in the widest dtype that JAX has at the time: unless x64 is on that is
    float32, and an angle p is off by up to p * 2^-23.

    Args:
        length: The number of positions p = offset, ..., offset + length - 1.
        width: E. An odd width drops the last cosine.
        offset: The first position.
        exponent: "shared", or, for a dialect, "doubled": column c then has an angle of its own, p / 10000^(2c/E).
        dtype: The name of a dtype, such as "float32".

    Returns:
        A new array [length, width] in `dtype`, computed in float64 and rounded once where the offset can be read.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.positions(length, width, offset, exponent, dtype)
    require_dtype(dtype)
    traced = isinstance(offset, jax.core.Tracer)
    xp = jnp if traced else np
    position = xp.arange(length) + (offset if traced else np.asarray(offset))
    angle = position[:, None] * xp.asarray(angular_frequencies(width, exponent))
    even = np.arange(width) % 2 == 0
    return jnp.asarray(xp.where(even, xp.sin(angle), xp.cos(angle)), dtype)


def learned_positions(table: Float[jax.Array, "N E"], length: int, *, offset: int = 0) -> Float[jax.Array, "length E"]:
    """Take rows offset, ..., offset + length - 1 of the table (POS-2).

    A row past the end is NaN where the offset is traced.

    Args:
        table: [N, E].
        length: How many rows.
        offset: The first row.

    Returns:
        A new array [length, E] in the dtype of table.

    Raises:
        ValueError: Rows past the end of the table.
    """
    if isinstance(offset, jax.Array) and not isinstance(offset, jax.core.Tracer) and offset.ndim == 0:
        offset = offset.item()
    checks.learned_positions(table, length, offset)
    require_dtype(dtype_name(table))
    if isinstance(offset, jax.core.Tracer):
        return take_rows(jnp.asarray(table), offset + jnp.arange(length))
    return jnp.asarray(table)[offset : offset + length]
