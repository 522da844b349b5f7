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


def sinusoidal_positions(
    length: int, width: int, *, offset: int = 0, exponent: str = "shared", dtype: str = "float32"
) -> Float[jax.Array, "length width"]:
    """PE[p, 2i] = sin(p / 10000^(2i/E)), PE[p, 2i+1] = cos of the same angle, for p = offset, ..., offset + length - 1.

    An offset that can be read gives constants, computed in float64 and rounded once. With a traced offset the angles
    are computed in the widest dtype that JAX has at the time: unless x64 is on that is float32, and an angle p is off
    by up to p * 2^-23. Returns [length, width] in `dtype`, a name.
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
    """Rows offset, ..., offset + length - 1 of the table.

    Reaching past its end is a ValueError where the offset can be read, and a row of NaN where it is traced.
    """
    if isinstance(offset, jax.Array) and not isinstance(offset, jax.core.Tracer) and offset.ndim == 0:
        offset = offset.item()
    checks.learned_positions(table, length, offset)
    require_dtype(dtype_name(table))
    if isinstance(offset, jax.core.Tracer):
        return take_rows(jnp.asarray(table), offset + jnp.arange(length))
    return jnp.asarray(table)[offset : offset + length]
