"""Position encodings, added to x or to scores, in JAX (rules POS-1, POS-2, POS-5, POS-6)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from jax_impl.dtypes import cast, require_dtype, widen
from jax_impl.embedding import take_rows
from specification import checks
from specification.dtypes import dtype_name
from specification.positions import alibi_slopes, angular_frequencies, bucket_edges

__all__ = ["alibi_bias", "learned_positions", "relative_position_bias", "sinusoidal_positions"]


def sinusoidal_positions(
    length: int,
    width: int,
    *,
    offset: int | Integer[jax.Array, ""] = 0,
    exponent: str = "shared",
    dtype: str = "float32",
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


def learned_positions(
    table: Float[jax.Array, "N E"], length: int, *, offset: int | Integer[jax.Array, ""] = 0
) -> Float[jax.Array, "length E"]:
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


@np.errstate(over="ignore")  # -inf in float16, far away
def alibi_bias(
    num_heads: int,
    query_length: int,
    key_length: int,
    *,
    offset: int | Integer[jax.Array, ""] = 0,
    dtype: str = "float32",
) -> Float[jax.Array, "1 H Q K"]:
    """Compute slope * (j - (i + offset)) for query i and key j, with a slope for each head (POS-5; ALiBi).

    Only offset may be traced. Then the bias is computed in the widest dtype that JAX has at the time: unless x64 is on
    that is float32.

    Args:
        num_heads: H.
        query_length: Q.
        key_length: K.
        offset: The position of the first query.
        dtype: The name of a dtype, such as "float32".

    Returns:
        A new array [1, H, Q, K] in `dtype`, a bias for `attention`, computed in float64 and rounded once where the
        offset can be read. It is negative for keys before the query, and positive after it, where it is for a mask to
        say whether they count.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.alibi_bias(num_heads, query_length, key_length, offset, dtype)
    require_dtype(dtype)
    traced = isinstance(offset, jax.core.Tracer)
    xp = jnp if traced else np
    slopes = xp.asarray(alibi_slopes(num_heads))
    position = xp.arange(query_length) + (offset if traced else np.asarray(offset))
    distance = xp.arange(key_length) - position[:, None]
    return jnp.asarray((slopes[:, None, None] * distance)[None], dtype)


def relative_position_bias(
    table: Float[jax.Array, "N H"],
    query_length: int,
    key_length: int,
    *,
    bidirectional: bool,
    furthest: int = 128,
    offset: int | Integer[jax.Array, ""] = 0,
) -> Float[jax.Array, "1 H Q K"]:
    """Take the bias of every query and key from a table, by the bucket of their distance (POS-6; Raffel et al., T5).

    Only table and offset may be traced.

    A query i stands at position i + offset. Of the buckets of a direction, half hold one distance each, the others a
    range that grows with the distance.

    Args:
        table: [N, H], a row for every bucket, in float16, bfloat16, float32 or float64.
        query_length: Q.
        key_length: K.
        bidirectional: Whether keys after the query have buckets of their own, the second half of the table. Otherwise
            they share the bucket of distance 0, and all buckets are for keys before it.
        furthest: The distance from which on all keys share the last bucket.
        offset: The position of the first query.

    Returns:
        A new array [1, H, Q, K] in the dtype of table, a bias for `attention`.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.relative_position_bias(table, query_length, key_length, bidirectional, furthest, offset)
    bucket = buckets_of(query_length, key_length, offset, table.shape[0], bidirectional, furthest)
    # The whole table is widened, not the rows taken, so that its gradient adds up in the wider dtype.
    rows = take_rows(widen(table), bucket)
    return cast(jnp.moveaxis(rows, -1, 0)[None], table.dtype)


@partial(jax.jit, static_argnums=(0, 1, 3, 4, 5))
def buckets_of(
    query_length: int,
    key_length: int,
    offset: int | Integer[jax.Array, ""],
    count: int,
    bidirectional: bool,
    furthest: int,
) -> Integer[jax.Array, "Q K"]:
    """Of `count` buckets the one for every query and key: how many later ones' smallest distance is reached (POS-6)."""
    size = count // 2 if bidirectional else count
    edges = jnp.asarray(bucket_edges(size, furthest))
    position = jnp.arange(query_length) + offset
    relative = jnp.arange(key_length) - position[:, None]
    distance = jnp.abs(relative) if bidirectional else jnp.maximum(-relative, 0)
    bucket = jnp.searchsorted(edges, distance, side="right")
    return bucket + size * (relative > 0) if bidirectional else bucket
